"""The state of an offline log: computed from its control entries as by a member."""

from __future__ import annotations

from quorumlog.log_state.log_state import AnyState, LogState
from quorumlog.node.log_states import LogStateReading
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogStart


def state_at_end(store: LedgerStore) -> AnyState:
    """All entries are committed and durable. The state at the boundary of each segment is saved, so that
    the next call reads only new entries. Raises DirectoryDamaged, RangeDamaged, StoreFailure,
    DiskFull."""
    states, boundary_states = _read(store, store.end.index).finished()
    for point, state in boundary_states:
        if isinstance(state, LogState):
            store.boundaries.save(LogStart(point, state.encode()))
    return states.appended


def state_of(store: LedgerStore, committed_index: int) -> AnyState:
    """At the end of the log; nothing is saved. Raises DirectoryDamaged, RangeDamaged, StoreFailure."""
    return _read(store, committed_index).finished()[0].appended


def _read(store: LedgerStore, committed_index: int) -> LogStateReading:
    reading = LogStateReading(store)
    while not reading.is_done:
        reading.read_on(committed_index)
    return reading
