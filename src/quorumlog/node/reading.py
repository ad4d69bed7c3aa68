"""Reads of the log for clients, and the questions about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    ConnectionFull,
    DirectoryDamaged,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.header_array import Int64Array
from quorumlog.log_state.log_state import Resets
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.ports import Member
from quorumlog.node.sending import RecentBatches
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import ColdRange
from quorumlog.store.time_marks import (
    LOOK_ENTRIES,
    Mark,
    MarkedLog,
    mark_at_index,
    mark_at_time,
    mark_of,
)

# ---------------------------------------------------------------- Confirmations
# Who waits for a majority to confirm that this member leads, or follows who does.

Confirmed = Callable[[LedgerError | None], None]
"""Gets None, or a refusal if the leader has changed meanwhile."""


class Confirmations:
    def __init__(self, raft: RaftNode) -> None:
        self._raft = raft
        self._waiting: dict[int, tuple[Confirmed, object]] = {}
        """By number of the read: callback and owner."""

    def request(self, done: Confirmed, owner: object) -> None:
        """Of a leader."""
        self._waiting[self._raft.request_read()] = done, owner

    def request_read(self, done: Confirmed, owner: object = None) -> None:
        """As `LedgerNode.confirm_leadership`, on any member: a follower asks its leader, and reports
        once its own committed index is as high."""
        try:
            number = self._raft.reads.request()
        except LedgerError as error:
            done(error)
        else:
            self._waiting[number] = done, owner

    def grant(self, number: int) -> None:
        if number in self._waiting:
            done, _ = self._waiting.pop(number)
            done(None)

    def refuse(self, refusal: LedgerError) -> None:
        waiting, self._waiting = self._waiting, {}
        for done, _ in waiting.values():
            done(refusal)

    def discard(self, owner: object) -> None:
        self._waiting = {n: one for n, one in self._waiting.items() if one[1] is not owner}


# ---------------------------------------------------------------- ReadableLog
# What of the log may be handed out, and whether it lies in memory or in a file.


class ReadableLog:
    def __init__(self, member: Member, recent: RecentBatches) -> None:
        self._raft, self._store = member.raft, member.store
        self._recent = recent
        self._member_id = member.config.member_id

    def find(
        self, first_index: int, stop_index: int, limit_bytes: int, committed_index: int
    ) -> EntryBatch | ColdRange:
        """Committed entries from `first_index` on: bytes if they are in memory, else a read for the read
        thread (`LedgerStore.read_from`); equal requests share it.

        `stop_index` -1 means all that is committed. Raises IndexOutOfRange, RangeDamaged if they are
        damaged here, and LeaderNotReady where the answer is "no more" or "up to here" while a new leader
        that was not confirmed does not know yet which entries earlier leaders acknowledged.
        """
        begin = self._store.begin.index + 1
        if (first_index > committed_index or stop_index < 0) and self._opens_its_term(committed_index):
            raise LeaderNotReady(
                f"{self._member_id} has led term {self._raft.term} for an instant only",
                retry_after_ms=5,
            )
        if first_index < begin or first_index > committed_index:
            problem = (
                f"index {first_index} is outside the log, whose committed entries are {begin} to"
                f" {committed_index}"
            )
            if first_index < begin:
                problem += (
                    f": entries below {begin} are gone here; read from there on, or from another member"
                    " (its log may begin lower)"
                )
            raise IndexOutOfRange(
                problem,
                ledger_begin_index=begin,
                committed_index=committed_index,
            )
        readable = committed_index + 1
        stop_index = readable if stop_index < 0 else min(stop_index, readable)
        recent = self._recent.take(first_index, stop_index, limit_bytes)
        if recent is not None:
            return recent.batch
        damaged = next((q for q in self._store.damaged if q.holds(first_index)), None)
        if damaged is not None:
            raise RangeDamaged(str(damaged))
        most = limit_bytes // HEADER_BYTES + 1  # no more entries fit, however small they are
        return ColdRange(first_index, min(stop_index, first_index + most), limit_bytes)

    def _opens_its_term(self, committed_index: int) -> bool:
        """Entries that this leader holds may be committed, unknown to it."""
        if self._raft.role is not Role.LEADER:
            return False
        return committed_index < 0 or self._raft.term_at(committed_index) != self._raft.term


# ---------------------------------------------------------------- ReaderLags
# How much data readers have not read yet, counted beside the loop.

COUNTED_ENTRIES = 1 << 20
"""Among the newest so many, control entries are not counted; further back the few among the data are."""


class ReaderLags:
    def __init__(self, member: Member) -> None:
        self._store, self._host = member.store, member.host
        self._found_damage = member.found

    def count(
        self, positions: Sequence[int], stop_index: int, done: Callable[[list[int]], None]
    ) -> None:
        """`done` gets how many data entries lie from each position on before `stop_index`, which is
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


# ---------------------------------------------------------------- MarkFinder
# Which time mark holds at an entry, and where a time begins; looked up beside the loop.

MarkOutcome = Mark | LedgerError | None
"""None: no time mark is that early, or precedes that entry."""
MOST_WAITING = 100
"""They share the thread that reads for everybody."""
RETRY_MS = 20


class StoredLog:
    """A `MarkedLog`, of a member's store."""

    def __init__(self, store: LedgerStore, clock_resets: Resets) -> None:
        self._store = store
        self.clock_resets = clock_resets

    @property
    def begin_index(self) -> int:
        return self._store.begin.index

    def states(self) -> Iterator[tuple[int, bytes]]:
        for saved in self._store.boundaries.saved():
            yield saved.point.index, saved.record
        start = self._store.start
        if start is not None:
            yield start.point.index, start.record

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        return self._store.control_batches(first_index, stop_index)


class MarkFinder:
    def __init__(self, member: Member, log_state: LogStateKeeper) -> None:
        self._member = member
        self._store = member.store
        self._log_state = log_state
        self._waiting = 0

    @property
    def newest(self) -> Mark | None:
        """The last committed one; None: there is none, or the log's state is not known."""
        state = self._log_state.committed
        return None if state is None else mark_of(state)

    @property
    def clock_resets(self) -> Resets:
        """Committed ones; none while the log's state is not known."""
        state = self._log_state.committed
        return () if state is None else state.clock_resets

    def at_index(self, index: int, done: Callable[[MarkOutcome], None]) -> None:
        """See `mark_at_index`; of the last committed entry, where that comes sooner."""
        state, committed_index = self._log_state.committed, self._member.committed_index
        index = min(index, committed_index)
        if state is not None and state.time_index <= index:
            done(mark_of(state))
        else:
            self._find(lambda log: mark_at_index(log, index), done)

    def at_data_from(self, index: int, done: Callable[[MarkOutcome], None]) -> None:
        """The same of the first data at or after `index`: a reader at the log's begin or below, before
        the first mark, waits for an entry that has one."""
        state, committed_index = self._log_state.committed, self._member.committed_index
        if state is not None and state.time_index <= index:
            done(mark_of(state))
        else:
            self._find(lambda log: mark_at_index(log, self._data_from(index, committed_index)), done)

    def _data_from(self, index: int, committed_index: int) -> int:
        """Looked for within a few entries; `index` if there is none."""
        first = max(index, self._store.begin.index + 1)
        kinds = self._store.kinds(first, min(first + LOOK_ENTRIES, committed_index + 1))
        found = np.flatnonzero(kinds == EntryKind.NORMAL)
        return first + int(found[0]) if len(found) else first

    def at_time(self, time_ms: int, done: Callable[[MarkOutcome], None]) -> None:
        """See `mark_at_time`; of committed entries."""
        state, committed_index = self._log_state.committed, self._member.committed_index
        if state is not None and (state.time_ms is None or state.time_ms <= time_ms):
            done(mark_of(state))
        else:
            self._find(lambda log: mark_at_time(log, time_ms, committed_index + 1), done)

    def _find(
        self, find: Callable[[MarkedLog], Mark | None], done: Callable[[MarkOutcome], None]
    ) -> None:
        if self._waiting >= MOST_WAITING:
            refusal = f"{MOST_WAITING} others look for a time already"
            done(ConnectionFull(refusal, retry_after_ms=RETRY_MS))
            return
        self._waiting += 1
        log = StoredLog(self._store, self.clock_resets)

        def look() -> Mark | None:
            begin = self._store.begin
            while True:
                try:
                    return find(log)
                except IndexOutOfRange:
                    if self._store.begin == begin:
                        raise
                    begin = self._store.begin  # its first entries went meanwhile

        def found(result: Mark | StoreFailure | LedgerError | None) -> None:
            self._waiting -= 1
            if isinstance(result, DirectoryDamaged):
                self._member.found(result)
                done(RangeDamaged(str(result)))
            elif isinstance(result, StoreFailure):
                raise result
            else:
                done(result)

        self._member.host.read_later(look, found)
