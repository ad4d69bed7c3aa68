"""LogResets: resets of the log's clock, by position: messages are known by where they lie."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.errors import DirectoryDamaged, LedgerError
from quorumlog.log_state.log_state import Reset, Resets
from quorumlog.node.ledger_node import LedgerNode


class LogResets:
    """Any thread."""

    def __init__(self, node: Callable[[], LedgerNode | None]) -> None:
        """`node`: the one of now; None while there is none."""
        self._node = node
        self._positions: dict[int, int] = {}
        """Of the end of each entry, by index."""

    def __call__(self) -> Resets:
        """The index of each is the position behind its entry. What lies in front of where the log begins
        bounds no message that is left."""
        node = self._node()
        state = None if node is None else node.log_state.appended
        if node is None or state is None or not state.clock_resets:
            return ()
        found = []
        for reset in state.clock_resets:
            position = self._position_of(node, reset.index)
            if position is not None:
                found.append(Reset(position, reset.time_ms))
        return tuple(found)

    def _position_of(self, node: LedgerNode, index: int) -> int | None:
        known = self._positions.get(index)
        if known is not None and index <= node.committed_index:
            return known
        try:
            point = node.store.point_in_memory(index) or node.store.point_on_disk(index)
        except (LedgerError, DirectoryDamaged):
            return None
        self._positions[index] = point.position
        return point.position
