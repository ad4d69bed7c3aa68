"""ReaderLags: how much data readers have not read yet, counted beside the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quorumlog.entry import EntryKind
from quorumlog.errors import DirectoryDamaged, LedgerError, StoreFailure
from quorumlog.header_array import Int64Array
from quorumlog.node.ports import Host
from quorumlog.store.ledger_store import LedgerStore

COUNTED_ENTRIES = 1 << 20
"""Of the newest so many it is looked at which are control entries; of what lies further back
the few among the data count as well."""


class ReaderLags:
    def __init__(
        self, store: LedgerStore, host: Host, found_damage: Callable[[DirectoryDamaged], None]
    ) -> None:
        self._store = store
        self._host = host
        self._found_damage = found_damage

    def count(
        self, positions: Sequence[int], stop_index: int, done: Callable[[list[int]], None]
    ) -> None:
        """`done` gets how many data entries lie from each position on in front of `stop_index`, which is
        held."""
        begin_index = self._store.begin.index + 1
        behind = [position for position in positions if position < stop_index]
        first_index = max(min(behind, default=stop_index), begin_index, stop_index - COUNTED_ENTRIES)

        def look() -> Int64Array:
            kinds = self._store.kinds(first_index, stop_index)
            return first_index + np.flatnonzero(kinds != EntryKind.NORMAL)

        def counted(controls: Int64Array | StoreFailure | LedgerError) -> None:
            if isinstance(controls, DirectoryDamaged):
                self._found_damage(controls)
            if isinstance(controls, DirectoryDamaged | LedgerError):
                controls = np.empty(0, np.int64)  # damaged, or cut meanwhile: the others count as well
            elif isinstance(controls, StoreFailure):
                raise controls
            passed = np.searchsorted(controls, np.array(positions, np.int64)).tolist()
            done(
                [
                    max(0, stop_index - position) - (len(controls) - before)
                    for position, before in zip(positions, passed, strict=True)
                ]
            )

        self._host.read_later(look, counted)
