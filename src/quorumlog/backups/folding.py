"""The state of a copied log: what follows from its control entries, as a member folds them."""

from __future__ import annotations

from quorumlog.log_state.control_entries import Unreadable
from quorumlog.log_state.log_state import EMPTY, LogState, decode_state
from quorumlog.log_state.log_states import AnyState, folded
from quorumlog.node.writing.log_state_keeper import CHUNK_ENTRIES, controls_of
from quorumlog.store.ledger_store import LedgerStore


def state_at_end(store: LedgerStore, known: tuple[int, bytes] | None) -> AnyState | Unreadable:
    """`known`: an index, and the record of the state there; None: where the log begins. Raises
    DirectoryDamaged, RangeDamaged."""
    begin = store.start
    index, record = known or (store.begin.index, b"" if begin is None else begin.record)
    state: AnyState | Unreadable = decode_state(record) if record else EMPTY
    while index < store.end.index and isinstance(state, LogState):
        stop_index = min(index + 1 + CHUNK_ENTRIES, store.end.index + 1)
        for batch in store.control_batches(index + 1, stop_index):
            state = folded(state, controls_of(batch))
        index = stop_index - 1
    return state
