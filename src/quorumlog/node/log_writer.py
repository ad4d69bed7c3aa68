"""LogWriter: what enters this member's log and what is cut from it.

    a push has come          its bytes are checked and its space is reserved, before the core sees it
    the core orders a cut    the store is cut, and what of the end was in memory is forgotten
    the core orders entries  a push, an own proposal or a no-op is written where it was planned

The core counts on what it was told, so nothing that it orders may fail for lack of space any more.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from quorumlog.batch import EntryBatch, Int64Array
from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import AppendOrder
from quorumlog.entry import EntryKind
from quorumlog.errors import DirectoryDamaged, DiskFull, StoreFailure
from quorumlog.node.healer import Healer
from quorumlog.node.push_sender import (
    check_positions,
    check_shares_log,
    checked_entries,
    end_before,
)
from quorumlog.node.recent_batches import RecentBatches
from quorumlog.store.ledger_store import LedgerStore


class LogWriter:
    def __init__(
        self, raft: RaftNode, store: LedgerStore, recent: RecentBatches, healer: Healer
    ) -> None:
        self._raft = raft
        self._store = store
        self._recent = recent
        self._healer = healer
        self._planned: EntryBatch | None = None
        """A push that the store has planned for: nothing was appended or cut since."""
        self.promised: deque[tuple[int, EntryBatch, Int64Array]] = deque()
        """(first index, batch, positions) of proposals whose AppendOrder has not come yet."""
        self.disk_full = ""
        """Why the last append was refused for lack of space; empty again once one succeeds."""

    # ---------------------------------------------------------------- before the core sees a push

    def looks_before_it_cuts(self, message: PushEntryRequest) -> bool:
        """Where a cut is near, see that the entry before it is what the index says, while the one behind
        still proves its chain: the log's end is taken from that entry. False if nobody can tell."""
        cut_index = self._raft.conflict_of(message)
        begin, durable = self._store.begin.index, self._store.durable.index
        if cut_index is None or not begin < cut_index - 1 <= durable:
            return True
        try:
            self._healer.settle(self._store.examine(cut_index - 1, cut_index + 1))
        except DirectoryDamaged as damage:
            self._healer.unbounded(damage)
            return False
        return True

    def has_room_for(self, message: PushEntryRequest) -> bool:
        """Check the entries of an APPEND and reserve space for them and for all that waits for them.

        Raises ProtocolViolation.
        """
        batch = checked_entries(message)
        shared_index = self._raft.last_shared_index(message)
        if shared_index is not None:
            check_shares_log(message, shared_index, self._store)
        waiting = [push.entries for push in self._raft.waiting_pushes()]
        try:
            try:
                positions = self._plan_together([batch, *waiting])
            except DiskFull:
                if not waiting:
                    raise
                # They will be sent again. A no-op must not be refused for the data that waits behind it.
                self._raft.drop_waiting_pushes()
                waiting = []
                positions = self._plan_together([batch])
        except DiskFull as error:
            self.disk_full = str(error)
            return False
        self.disk_full = ""
        if message.previous == self._store.end.entry_id:
            check_positions(batch, positions[: batch.count])
            if not waiting:
                self._planned = batch
        return True

    def _plan_together(self, batches: list[EntryBatch]) -> Int64Array:
        """Raises DiskFull. Data among them leaves the reserve of the no-ops alone."""
        sizes = batches[0].sizes if len(batches) == 1 else np.concatenate([b.sizes for b in batches])
        return self._store.plan(sizes, control=all(batch.is_control for batch in batches))

    # ---------------------------------------------------------------- what the core orders

    def truncate_from(self, index: int, appends: tuple[AppendOrder, ...]) -> None:
        """Cut everything from `index` on; `appends` are what the same Ready writes behind the cut."""
        quarantined = next((q for q in self._store.quarantined if q.holds(index - 1)), None)
        end = None
        if quarantined is not None:
            assert appends, f"entry {index - 1} is in quarantine, and nothing follows the cut behind it"
            end = end_before(appends[0], quarantined.term_at(index - 1))
        self._store.truncate_from(index, end)
        self._planned = None
        self._recent.truncate_from(index)

    def append(self, order: AppendOrder) -> None:
        previous_chain = self._store.end.chain
        if order.entries is not None:
            batch: EntryBatch = order.entries
            skip = order.first_index - order.push_first_index
            if skip or order.count != batch.count:
                batch = batch.slice(skip, skip + order.count)
            if batch is not self._planned:
                self._plan_promised(batch)
        else:
            if order.kind is EntryKind.NOOP:
                batch = EntryBatch.noop()
                positions = self._plan_promised(batch)
            else:
                first_index, batch, positions = self.promised.popleft()
                assert first_index == order.first_index, (first_index, order.first_index)
            assert batch.count == order.count, (batch.count, order.count)
            batch.stamp(order.first_index, order.term, positions, previous_chain)
        self._store.append(batch)
        self._planned = None
        self._recent.add(batch, previous_chain)

    def _plan_promised(self, batch: EntryBatch) -> Int64Array:
        """Positions of entries that the core counts on already: a push that was taken, a no-op.

        A cut that came before them gave back more space than they need, but the watermark would refuse
        it: so they are placed by the rule for no-ops.
        """
        try:
            return self._store.plan(batch.sizes, control=True)
        except DiskFull as error:
            raise StoreFailure(f"space that was set aside for entries is gone: {error}") from error
