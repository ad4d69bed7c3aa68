"""LogWriter: what enters this member's log and what is cut from it.

    a push has come          its bytes are checked and its space is reserved, before the core sees it
    the core orders a cut    the store is cut, and what of the end was in memory is forgotten
    the core orders entries  a push, an own proposal or a no-op is written where it was planned

Nothing that the core orders may fail for lack of space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import AppendOrder
from quorumlog.entry import EntryKind
from quorumlog.errors import (
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.header_array import Int64Array
from quorumlog.node.ports import Host
from quorumlog.node.repair.repairer import Repairer
from quorumlog.node.sending.recent_batches import RecentBatches
from quorumlog.node.writing.log_state_keeper import LogStateKeeper
from quorumlog.node.writing.push_checks import check_positions, checked_entries, end_before, shares_log
from quorumlog.store.ledger_store import Examination, LedgerStore, LogPoint

MOST_WAITING = 64
"""Pushes that wait for their place in the log to be read; more of them come when they are sent again."""


class _Look(NamedTuple):
    entry_index: int
    truncations: int
    """`LedgerStore.truncations` before."""
    point: LogPoint | None
    """None: damaged, or the disk cannot tell."""
    is_close: bool
    examination: Examination | None
    """None also if the entry is not durable yet."""


class Promised(NamedTuple):
    """What this leader has proposed."""

    first_index: int
    batch: EntryBatch
    positions: Int64Array
    has_controls: bool


class LogWriter:
    def __init__(
        self,
        raft: RaftNode,
        store: LedgerStore,
        recent: RecentBatches,
        repairer: Repairer,
        log_state: LogStateKeeper,
        host: Host,
        receive_again: Callable[[PushEntryRequest], None],
    ) -> None:
        self._raft = raft
        self._store = store
        self._recent = recent
        self._repairer = repairer
        self.log_state = log_state
        self._host = host
        self._receive_again = receive_again
        self._is_looking = False
        self._waiting: list[PushEntryRequest] = []
        """Pushes whose place in the log has to be read first."""
        self._look: _Look | None = None
        """What was read for those that come again just now."""
        self._contradiction: _Look | None = None
        """A push has contradicted it: refused on its connection, when its sender repeats it."""
        self._planned: EntryBatch | None = None
        """A push that the store has planned for: nothing was appended or cut since."""
        self.promised: deque[Promised] = deque()
        """Proposals whose AppendOrder has not come yet."""
        self.disk_full = ""
        """Why data was refused for lack of space; empty again once the very same would be taken. Were it
        so once less is taken, leaders with full disks would hand over to each other without end."""
        self._refused_sizes: Int64Array | None = None

    def is_sound_where_it_meets(self, message: PushEntryRequest) -> bool:
        """Look at the last entry that this log shares with a push, while the one behind still proves its
        chain: where the push cuts, the log's end is taken from that entry, and where it does not agree
        with the sender's, it may be this disk that is wrong. False: the message comes again once its
        place is read, or has to be sent again.

        Raises ProtocolViolation if the sender holds other entries.
        """
        if message.push is PushType.APPEND:
            checked_entries(message)
        shared_index = self._raft.pushes.last_shared_index(message)
        if shared_index is None:
            return True
        look, self._contradiction = self._look or self._contradiction, None
        if look is not None and (look.entry_index, look.truncations) != (
            shared_index,
            self._store.truncations,
        ):
            look = None
        cuts = self._raft.pushes.conflict_of(message) is not None
        shares = message.push is PushType.TRUNCATE or shares_log(message, shared_index, self._store)
        if shares and not cuts:
            return True
        if look is None or ((cuts or shares is False) and not look.is_close):
            self._look_at(shared_index, message, is_close=cuts or shares is False)
            return False
        if look.examination is not None and self._repairer.settle(look.examination):
            return bool(shares)  # else it comes again, and finds a damaged range
        if not shares:
            raise ProtocolViolation(
                f"{message.sender.member_id} holds other entries up to index {shared_index} than this"
                " member: run `quorumlog verify` on both data directories"
            )
        return True

    def _look_at(self, index: int, message: PushEntryRequest, *, is_close: bool) -> None:
        """Then let the message come again. `is_close`: compare data, index and bodies of the entry and
        the one behind it, too."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(message)
        if self._is_looking:
            return
        self._is_looking = True
        store, truncations = self._store, self._store.truncations

        def look() -> _Look:
            point, close, examination = None, is_close, None
            try:
                point = store.point_on_disk(index)
            except DirectoryDamaged:
                close = True
            except (RangeDamaged, IndexOutOfRange):
                pass  # the terms are known all the same; or cut meanwhile
            if close and store.begin.index < index <= store.durable.index:
                examination = store.examine(index, index + 2)
            return _Look(index, truncations, point, close, examination)

        self._host.read_later(look, self._looked)

    def _looked(self, result: _Look | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        waiting, self._waiting = self._waiting, []
        if isinstance(result, DirectoryDamaged):
            self._repairer.unbounded(result)
            return
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        if result.point is not None:
            self._store.remember(result.point, result.truncations)
        self._look = result
        for message in waiting:
            try:
                self._receive_again(message)
            except ProtocolViolation:
                self._contradiction = result
        self._look = None

    def has_room_for(self, message: PushEntryRequest) -> bool:
        """Reserve space for the entries of an APPEND and for all that waits for them.

        Raises ProtocolViolation where they lie elsewhere in the sender's log.
        """
        batch = message.batch
        if self._raft.pushes.last_shared_index(message) == message.last_index:
            return True  # it is all here; the answer to its first copy was lost
        waiting = [push.batch for push in self._raft.pushes.waiting_pushes]
        try:
            self.log_state.admit(batch)
            try:
                positions = self._plan_together([batch, *waiting])
            except DiskFull:
                if not waiting:
                    raise
                # A no-op must not be refused for the data that waits behind it.
                self._raft.pushes.drop_waiting_pushes()
                waiting = []
                positions = self._plan_together([batch])
        except DiskFull as error:
            self.refuse(batch.sizes, error)
            return False
        if message.previous == self._store.end.entry_id:
            check_positions(batch, positions[: batch.count])
            if not waiting:
                self._planned = batch
        return True

    def refuse(self, sizes: Int64Array, error: DiskFull) -> None:
        self.disk_full = str(error)
        self._refused_sizes = sizes

    def look_for_space(self) -> None:
        """Would what was refused find room now? Between turns only: no entries wait for their plan."""
        if self._refused_sizes is None:
            return
        self._planned = None
        try:
            self._store.plan(self._refused_sizes)
        except DiskFull:
            return
        self.disk_full, self._refused_sizes = "", None

    def _plan_together(self, batches: list[EntryBatch]) -> Int64Array:
        """Raises DiskFull. What no election needs leaves the reserve of the no-ops alone. Data in front
        of an entry that lets segments go is let in with it: else a full disk would stay so."""
        sizes = batches[0].sizes if len(batches) == 1 else np.concatenate([b.sizes for b in batches])
        try:
            return self._store.plan(
                sizes,
                control=all(batch.may_use_reserve for batch in batches),
                sparing=not all(batch.is_small_control for batch in batches),
            )
        except DiskFull:
            if not any(batch.frees_space for batch in batches):
                raise
            return self._store.plan(sizes, control=True, sparing=True)

    def truncate_from(self, index: int, appends: tuple[AppendOrder, ...]) -> None:
        """Cut everything from `index` on; `appends` are what the same Ready writes behind the cut."""
        damaged = self._store.damaged_at(index - 1)
        end = None
        if damaged is not None:
            assert appends, f"entry {index - 1} is damaged, and nothing follows the cut behind it"
            end = end_before(appends[0], damaged.term_at(index - 1))
        self._store.truncate_from(index, end)
        self._planned = None
        self._recent.truncate_from(index)
        self.log_state.truncate_from(index)

    def append(self, order: AppendOrder) -> None:
        previous, has_controls = self._store.end, True
        if order.batch is not None:
            batch: EntryBatch = order.batch
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
                first_index, batch, positions, has_controls = self.promised.popleft()
                assert first_index == order.first_index, (first_index, order.first_index)
            assert batch.count == order.count, (batch.count, order.count)
            batch.stamp(order.first_index, order.term, positions, previous.chain)
        self._store.append(batch)
        self._planned = None
        self._recent.add(batch, previous.chain)
        borders = self._store.borders.crossed(previous, batch)
        if borders or has_controls:
            self.log_state.append(batch, borders)

    def _plan_promised(self, batch: EntryBatch) -> Int64Array:
        """Positions of entries that the core counts on already: a push that was taken, a no-op.

        A cut may have given back the space that they need, but the watermark would refuse it: so they
        are placed by the rule for no-ops.
        """
        try:
            return self._store.plan(batch.sizes, control=True)
        except DiskFull as error:
            raise StoreFailure(f"space that was set aside for entries is gone: {error}") from error
