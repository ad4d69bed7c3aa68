"""The state of a copied log: what follows from its control entries, as a member folds them."""

from __future__ import annotations

from quorumlog.log_state.log_state import LogState
from quorumlog.log_state.log_states import AnyState
from quorumlog.node.writing.log_state_reading import LogStateReading
from quorumlog.store.ledger_store import LedgerStore, LogStart


def state_at_end(store: LedgerStore) -> AnyState:
    """All entries are committed and durable. What follows up to the border of each segment is saved, so
    that the next call looks only at what is new. Raises DirectoryDamaged, RangeDamaged, StoreFailure,
    DiskFull."""
    reading = LogStateReading(store)
    while not reading.is_done:
        reading.read_on(store.end.index)
    states, at_borders = reading.finished()
    for point, state in at_borders:
        if isinstance(state, LogState):
            store.borders.save(LogStart(point, state.encode()))
    return states.appended
