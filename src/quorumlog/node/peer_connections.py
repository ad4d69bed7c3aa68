"""PeerConnections: the combined state of the four connections between this member and one other.

Each side dials two and sends on them. The core sees the peer connected once all four lead to the same
process. It sees the loss when the first of them breaks, and once more if dialling the control connection
again is refused, the sign of a dead process. (A close or reset alone is not: networks do that too.)

One end has all four a moment before the other and sends at once. Its messages wait here until this end
is connected too, because the core would drop them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.config import MIB
from quorumlog.consensus.messages import AnyPeerMessage, goes_with_data
from quorumlog.entry import Replica

HELD_LIMIT_BYTES = 32 * MIB
"""Twice the largest frame. Messages above it are lost, and so are later ones on that connection."""
_FRAME_BYTES = 1024
"""What a frame takes here beside its entries, rounded up."""


class Way(NamedTuple):
    role: str
    """`control` (heartbeats, votes, COMMIT) or `data` (COMPARE, TRUNCATE, APPEND and their answers)."""
    is_ours: bool
    """We dialled it, and speak on it."""


WAYS = tuple(Way(role, is_ours) for is_ours in (True, False) for role in ("control", "data"))


def role_of(message: AnyPeerMessage) -> str:
    """Which connection a message takes, so that a heartbeat never waits for a megabyte of data."""
    return "data" if goes_with_data(message) else "control"


class _HeldMessage(NamedTuple):
    way: Way
    size_bytes: int
    enter: Callable[[], None]


class PeerConnections:
    def __init__(
        self,
        member_id: str,
        on_connected: Callable[[Replica], None],
        on_lost: Callable[[Replica, bool], None],
    ) -> None:
        self._member_id = member_id
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._speakers: dict[Way, tuple[str, str]] = {}
        """(directory id, run id) of the process at the other end of each open connection."""
        self.connected_to: Replica | None = None
        """While all four lead there."""
        self._reported: Replica | None = None
        """The directory last reported to the core."""
        self._held: list[_HeldMessage] = []
        self._held_bytes = 0
        self._overflowed: set[Way] = set()
        """Ways of which something was lost: what comes after it must not enter across the gap."""

    def opened(self, way: Way, directory_id: str, run_id: str = "") -> None:
        """An older one of the same way was a leftover."""
        self.broke(way)
        self._speakers[way] = directory_id, run_id
        if len(self._speakers) == len(WAYS) and len(set(self._speakers.values())) == 1:
            self.connected_to = self._reported = Replica(self._member_id, directory_id)
            self._on_connected(self.connected_to)
            for frame in self._take_held():
                frame.enter()

    def broke(self, way: Way) -> None:
        if self._speakers.pop(way, None) is not None:
            self._held = [frame for frame in self._held if frame.way != way]
            self._held_bytes = sum([frame.size_bytes for frame in self._held])
            self._overflowed.discard(way)
            self._lose(is_gone=False)

    def gone(self) -> None:
        """The control address no longer answers."""
        self._lose(is_gone=True)

    def hold(self, way: Way, batch_bytes: int, enter: Callable[[], None]) -> None:
        """Received while `connected_to` is empty: `enter` is called after `on_connected`, in order,
        unless the connection breaks first."""
        size_bytes = _FRAME_BYTES + batch_bytes
        if way in self._overflowed:
            return
        if self._held_bytes + size_bytes > HELD_LIMIT_BYTES:
            self._overflowed.add(way)
            return
        self._held_bytes += size_bytes
        self._held.append(_HeldMessage(way, size_bytes, enter))

    def close(self) -> None:
        """Without calling `on_lost`."""
        self.connected_to = None
        self._speakers.clear()
        self._take_held()

    def _take_held(self) -> list[_HeldMessage]:
        held, self._held = self._held, []
        self._held_bytes = 0
        self._overflowed.clear()
        return held

    def _lose(self, is_gone: bool) -> None:
        if self._reported is not None and (self.connected_to is not None or is_gone):
            self.connected_to = None
            self._on_lost(self._reported, is_gone)
