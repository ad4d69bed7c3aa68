"""The state of the log by its control entries: kept, read, saved before segments."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.consensus.membership import Membership
from quorumlog.entry import EntryKind, Replica
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    LevelNotReported,
    StoreFailure,
    UpgradeNotFinished,
)
from quorumlog.freed_memory import give_back_freed_memory
from quorumlog.log_state.control_entries import (
    AUTOMATIC_LEVEL,
    LEVEL,
    LEVELS,
    MOST_REPLACED,
    REPLACED_LEVEL,
    ControlEntry,
    LevelReached,
    Unreadable,
    decode_body,
)
from quorumlog.log_state.control_entries import MembershipEntry as MembershipBody
from quorumlog.log_state.log_state import (
    EMPTY,
    AnyState,
    LogState,
    LogStates,
    UnknownState,
    decode_state,
)
from quorumlog.node.ports import Member
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogPoint, LogStart

# ----------------------------------------------------------------
# A membership as the core counts by it, and as it lies in the log.


def membership_of(body: MembershipBody) -> Membership:
    return Membership(body.old, body.new, body.learners, body.addresses)


def body_of(membership: Membership, replaced: tuple[Replica, ...] = ()) -> MembershipBody:
    return MembershipBody(*membership, replaced)


def _ids(replicas: Iterable[Replica]) -> set[str]:
    return {replica.member_id for replica in replicas}


def replaced_by(
    wanted: Membership, present: Collection[Replica], before: tuple[Replica, ...]
) -> tuple[Replica, ...]:
    """The directories that are no longer members once `wanted` is final, the newest last. `before`:
    those in the log so far. A directory that an operator puts back is none of them."""
    members = wanted.final().members()
    gone = dict.fromkeys((*before, *sorted(present)))
    return tuple(replica for replica in gone if replica not in members)[-MOST_REPLACED:]


# ---------------------------------------------------------------- LogStateReading
# A log's state is read from the log, once, beside the loop.
#
# It begins with the newest state that is saved at a boundary of this very log, else with the one that
# the log's start has brought along, and folds only what follows. What is written meanwhile comes after
# it.

CHUNK_BYTES = 16 * MIB
"""So much is looked at before the read thread does something else, about."""


def _level_of_own(kind: EntryKind) -> int:
    """What a LEVEL entry says is what its leader knows."""
    return LEVEL if kind is EntryKind.LEVEL else LEVELS.get(kind, 0)


def _level_of(kind: EntryKind, body: bytes | memoryview) -> int:
    decoded = decode_body(kind, body) if kind is EntryKind.LEVEL else None
    return decoded.level if isinstance(decoded, LevelReached) else _level_of_own(kind)


BoundaryStates = list[tuple[LogPoint, AnyState]]
"""The states of a log at some of its boundaries, in order."""


def controls_of(batch: EntryBatch) -> list[ControlEntry]:
    """All but data."""
    positions = batch.control_positions()
    if not positions:
        return []
    first_index, controls = batch.first_index, []
    for at, (magic, term) in zip(positions, batch.kinds_and_terms(positions), strict=True):
        kind = EntryKind(magic)
        body = None if kind is EntryKind.NOOP else decode_body(kind, batch.body(at))
        controls.append(ControlEntry(first_index + at, kind, body, term))
    return controls


def append_past_boundaries(
    states: LogStates, first_index: int, controls: Sequence[ControlEntry], boundaries: Sequence[LogPoint]
) -> BoundaryStates:
    """Entries from `first_index` on, `controls` and these boundaries among them, are appended."""
    found = []
    for point in boundaries:
        assert point.index >= first_index - 1, (point, first_index)
        in_front = [entry for entry in controls if entry.index <= point.index]
        if in_front:
            states.append(first_index, in_front)
            controls, first_index = controls[len(in_front) :], in_front[-1].index + 1
        found.append((point, states.appended))
    states.append(first_index, controls)
    return found


class LogStateReading:
    """`read_on` runs in another thread, one call at a time; until it returns, the loop uses only
    `behind` and `boundaries_after`."""

    def __init__(self, store: LedgerStore) -> None:
        self.stop_index = store.end.index + 1
        """Entries from here on are not read."""
        self.behind: list[ControlEntry] = []
        """Written from `stop_index` on since it began."""
        self.boundaries_after: list[LogPoint] = []
        self.level = 0
        """Of the kinds in the entries read or before; 0: none is above NOOP."""
        self._store = store
        self._states: LogStates | None = None
        """Of the log up to `_next_index`; None before the first call."""
        self._next_index = 0
        self._boundaries: list[LogPoint] = []
        """Still to come."""
        self._boundary_states: BoundaryStates = []

    @property
    def _chunk_entries(self) -> int:
        begin, end = self._store.begin, self._store.end
        entry_bytes = (end.position - begin.position) // max(end.index - begin.index, 1)
        return max(CHUNK_BYTES // max(entry_bytes, HEADER_BYTES), 1)

    @property
    def is_done(self) -> bool:
        return self._states is not None and self._next_index >= self.stop_index

    def read_on(self, committed_index: int) -> None:
        """Some entries more. Raises IndexOutOfRange if the log begins elsewhere by now, RangeDamaged,
        DirectoryDamaged, StoreFailure."""
        states = self._states or self._begin(committed_index)
        first_index = self._next_index
        if first_index >= self.stop_index:
            return
        stop_index = min(first_index + self._chunk_entries, self.stop_index)
        batches = self._store.control_batches(first_index, stop_index)
        controls = [entry for batch in batches for entry in controls_of(batch)]
        self.level = max([self.level, *(LEVELS.get(entry.kind, 0) for entry in controls)])
        passed = [point for point in self._boundaries if point.index < stop_index]
        self._boundaries = self._boundaries[len(passed) :]
        self._boundary_states += append_past_boundaries(states, first_index, controls, passed)
        # What cannot be cut any more is held as a state, not as entries.
        proven_index = min(committed_index, stop_index - 1)
        if proven_index > states.committed_index:
            states.commit(proven_index)
        self._next_index = stop_index

    def _begin(self, committed_index: int) -> LogStates:
        state, index = self._begin_of_log(committed_index)
        give_back_freed_memory()  # records of many sessions are large
        self._boundaries = [p for p in self._store.boundaries.above(index) if p.index < self.stop_index]
        self._next_index = index + 1
        self._states = LogStates(state, index)
        if state != EMPTY:
            self.level = max(1, state.level) if isinstance(state, LogState) else LEVEL
        return self._states

    def _begin_of_log(self, committed_index: int) -> tuple[AnyState, int]:
        for saved in self._store.boundaries.saved():
            if saved.point.index > committed_index:
                continue  # damage has hidden that it was committed, or async mode takes it back
            state = decode_state(saved.record)
            if isinstance(state, LogState):
                return state, saved.point.index
        start = self._store.start
        if start is None:
            return EMPTY, -1
        begin_state, index = decode_state(start.record), start.point.index
        if isinstance(begin_state, Unreadable):
            return UnknownState(index, f"the state in the log's start: {begin_state.reason}"), index
        return begin_state, index

    def finished(self) -> tuple[LogStates, BoundaryStates]:
        """The result, including entries written meanwhile."""
        assert self._states is not None and self.is_done, (self._next_index, self.stop_index)
        behind = append_past_boundaries(
            self._states, self.stop_index, self.behind, self.boundaries_after
        )
        return self._states, self._boundary_states + behind

    def truncate_from(self, index: int) -> None:
        """Applies to the entries after the range being read."""
        assert index >= self.stop_index, (index, self.stop_index)
        self.behind = [entry for entry in self.behind if entry.index < index]
        self.boundaries_after = [point for point in self.boundaries_after if point.index < index - 1]


# ---------------------------------------------------------------- BoundarySaver
# The states at the boundaries of a log's segments are saved, beside the loop.
#
# A state is saved once the entry after its boundary is committed and on the own disk: from then on the
# boundary stays where it is, since how long that entry is decides where it lies, and a reader that finds
# the state knows that what lies before it is committed. It costs two syncs a segment, which nobody waits
# for.

SPACE_RETRY_MS = 1000
"""Where a full disk has no space for a state, it is tried again."""

MANY_PRODUCERS = 1000
"""Their state is large where it is encoded."""


class BoundarySaver:
    def __init__(self, member: Member) -> None:
        self._store, self._host = member.store, member.host
        self._tick_soon = member.housekeeping.stir
        self._waiting: list[tuple[LogPoint, LogState]] = []
        """In order; at most one for each segment of the log."""
        self._is_saving = False
        self._retry_ms = math.inf
        """When a full disk is asked again; infinite while nothing was refused."""

    def note(self, found: BoundaryStates) -> None:
        """These boundaries were written, or were found in the log, with these states."""
        known = [(point, state) for point, state in found if isinstance(state, LogState)]
        if known:
            self._waiting = sorted(self._waiting + known, key=lambda each: each[0].index)

    def truncate_from(self, index: int) -> None:
        """Where the next entry lies depends on how long it is."""
        self._waiting = [each for each in self._waiting if each[0].index < index - 1]

    def next_wakeup_ms(self) -> float:
        return self._retry_ms if self._waiting else math.inf

    def tick(self, now_ms: float, committed_index: int) -> None:
        if not self._waiting or self._is_saving or now_ms < self._retry_ms < math.inf:
            return
        self._retry_ms = math.inf
        point, state = self._waiting[0]
        if point.index >= committed_index or point.index >= self._store.durable.index:
            return
        store, self._is_saving = self._store, True

        def done(result: bool | StoreFailure | LedgerError) -> None:
            self._is_saving = False
            if isinstance(result, DiskFull):
                self._retry_ms = now_ms + SPACE_RETRY_MS
            elif isinstance(result, StoreFailure | LedgerError):
                raise result
            elif self._waiting and self._waiting[0][0] == point:
                del self._waiting[0]  # saved, or of no use: cut, dropped or damaged
            self._tick_soon()
            if state.producers.count >= MANY_PRODUCERS:
                self._host.read_later(give_back_freed_memory, lambda result: None)

        self._host.flush_later(lambda: store.boundaries.save(LogStart(point, state.encode())), done)


# ---------------------------------------------------------------- LogStateKeeper
# What follows from the control entries of this member's log (`quorumlog.log_state`).
#
#     entries are written    the control entries among them lead to the next state, on every member alike
#     a cut                  back to the committed state, and forth again
#     a commit               the committed state follows
#     a segment begins       the state before it is saved, once that is committed
#
# A start reads the control entries behind the newest saved state beside the loop
# (log_state_reading.py), and so does async mode when it cuts committed entries. The file `member` may
# be an older copy, which says that there are none: that is found out, too. While the state is not
# known, this member votes and takes entries, but neither campaigns nor leads: what it wrote as a leader
# could contradict an entry that it cannot read.

RETRY_MS = 500
"""Where damage keeps it from being read, it is tried again."""


class LogStateKeeper:
    def __init__(
        self,
        member: Member,
        time_written: Callable[[LogState], None],
        on_noted: Callable[[], None],
    ) -> None:
        """`time_written`: called with a time mark or a reset and the state after it. `on_noted`:
        `is_noting` is over."""
        self._directory, self._store = member.directory, member.store
        self._raft, self._host = member.raft, member.host
        self._found = member.found
        self._time_written = time_written
        self._on_noted = on_noted
        self._committed_index = max(self._store.begin.index, self._directory.committed_index)
        self.states: LogStates | None = LogStates(EMPTY, self._committed_index)
        """None: they have to be read from the log."""
        self._is_known = True
        self._reading: LogStateReading | None = None
        self._retry_ms = math.inf
        """When the reading goes on; infinite while it is at work."""
        self._reason = ""
        """What keeps the state from being known."""
        self._saver = BoundarySaver(member)
        self.is_noting = False
        """That the log may hold such entries is on its way to the disk: none is written before."""
        self._unnoted: tuple[int, bool] | None = None
        """Asked for while another note is on its way: level, and whether there are users."""
        self._lacks_space: DiskFull | None = None
        """What became of the last note; told once."""
        if self._store.end.index >= 0:
            self._forget()

    @property
    def problem(self) -> str:
        """In a sentence; empty if there is none."""
        if not self._reason:
            return ""
        return f"the state of the log is not known, and this member does not lead: {self._reason}"

    @property
    def committed_index(self) -> int:
        return self._committed_index

    def appended_state(self) -> LogState:
        """Of the whole log. Raises LeaderNotReady while it is not known."""
        return self._known(self.appended)

    def committed_state(self) -> LogState:
        """Up to the committed index. Raises LeaderNotReady while it is not known."""
        return self._known(self.committed)

    def _known(self, state: LogState | None) -> LogState:
        if state is None:
            why = self.problem or "the state of the log is being read"
            raise LeaderNotReady(why, retry_after_ms=RETRY_MS)
        return state

    # ---------------------------------------------------------------- before entries are written

    def admit(self, batch: EntryBatch) -> bool:
        """Entries of another member are about to be taken. False: once a note is on disk. Raises
        DiskFull."""
        if self.is_noting:
            return False
        if self._directory.may_hold(LEVEL, users=True):
            return True
        positions = batch.log_state_positions()
        if not positions:
            return True
        kinds = [EntryKind(kind) for kind, _ in batch.kinds_and_terms(positions)]
        levels = [_level_of(kind, batch.body(at)) for kind, at in zip(kinds, positions, strict=True)]
        return self._note(max(levels), users=EntryKind.USERS in kinds)

    def _note(self, level: int, *, users: bool) -> bool:
        """The log may hold such entries, and the file `member` says so. False: it is about to say
        something, and then this is asked again. Raises DiskFull."""
        directory = self._directory
        if directory.may_hold(level, users=users):
            return True
        refusal = self._lacks_space
        if self.is_noting:
            also_level, also_users = self._unnoted or (0, False)
            self._unnoted = max(level, also_level), users or also_users
        else:
            self._begin_note(level, users)
        refusal, self._lacks_space = self._lacks_space or refusal, None
        if not self.is_noting and directory.may_hold(level, users=users):
            return True
        if refusal is not None:
            raise refusal
        return False

    def _begin_note(self, level: int, users: bool) -> None:
        self.is_noting, self._unnoted, self._lacks_space = True, None, None
        note = partial(self._directory.allow_control_entries, level, users=users)
        self._host.promise_later(note, self._noted)

    def _noted(self, result: StoreFailure | LedgerError | None) -> None:
        self.is_noting = False
        unnoted, self._unnoted = self._unnoted, None
        if isinstance(result, DiskFull):
            self._lacks_space = result
        elif result is not None:
            raise result
        elif unnoted is not None:
            self._begin_note(*unnoted)
            return
        self._on_noted()

    @property
    def committed(self) -> LogState | None:
        """Up to the committed index; None while it is not known."""
        state = None if self.states is None else self.states.committed
        return state if isinstance(state, LogState) else None

    @property
    def appended(self) -> LogState | None:
        """Of the whole log; None while it is not known."""
        state = None if self.states is None else self.states.appended
        return state if isinstance(state, LogState) else None

    def admit_own(self, kind: EntryKind, membership: MembershipBody | None = None) -> None:
        """This leader is about to write such an entry. Raises as `check_own`, and DiskFull."""
        self.check_own(kind, membership)
        if not self._note(_level_of_own(kind), users=kind is EntryKind.USERS):
            raise LeaderNotReady(
                "that the log may hold such entries is on its way to the disk", retry_after_ms=RETRY_MS
            )

    def check_own(self, kind: EntryKind, membership: MembershipBody | None = None) -> None:
        """Whether this leader may write such an entry. `membership`: which it would say. Raises
        LeaderNotReady, UpgradeNotFinished, LevelNotReported while not every member knows it."""
        if not self._is_known:
            raise LeaderNotReady(self.problem, retry_after_ms=RETRY_MS)
        state = None if self.states is None else self.states.appended
        # A member that cannot read entries of the state's level cannot read this log any more.
        level = _level_of_own(kind)
        if not isinstance(state, LogState) or state.level < level:
            if level > self.automatic_level and kind is not EntryKind.LEVEL:
                raise UpgradeNotFinished(
                    f"{kind.name} entries need level {level} of the log's format: run quorumlog upgrade"
                    " finish once every member runs this release"
                )
            status = self._raft.status()
            if membership is None and status.membership_index > status.committed_index:
                raise LeaderNotReady(
                    f"{kind.name} entries need level {level} of the log's format, and a member that is"
                    " being removed may be one again until that is committed",
                    retry_after_ms=RETRY_MS,
                )
            # A removed member stays connected for a moment.
            members = _ids(status.membership.members())
            unreported = members.intersection(self._host.members_below(level))
            leaving: set[str] = set()
            if membership is not None:
                leaving = _ids(membership.old) - _ids((*membership.new, *membership.learners))
            if leaving:
                # One that is lost for good must not keep everybody from removing it, or another one.
                unreported = unreported.intersection(_ids(self._raft.connected)) - leaving
            below = sorted(unreported)
            if below:
                raise LevelNotReported(
                    f"{kind.name} entries need level {level} of the log's format, and"
                    f" {', '.join(below)} has not reported to this leader that it supports it:"
                    " start it with this release, or remove it if it is lost"
                    f" (quorumlog member remove {below[0]})"
                )

    def check_reads(self, member_id: str) -> None:
        """A connected process is to become a member. Raises LevelNotReported where it is of a release
        that could not read this log: it would wait for ever."""
        level = max(self.appended_state().level, self._directory.formation.level)
        if member_id in self._host.members_below(level):
            raise LevelNotReported(
                f"{member_id} runs an earlier release, which cannot read this log, since it may have"
                f" entries of level {level} of the log's format: start it with the release of the others"
            )

    def membership_body(self, wanted: Membership) -> MembershipBody:
        """The body of the entry that makes these the members. Entries that named a replaced directory
        may be deleted by the time it returns, so each body lists those replaced, unless a member's
        release could not read it. Raises LeaderNotReady."""
        state, present = self.appended_state(), self._raft.status().membership
        before = () if state.membership is None else state.membership.replaced
        replaced = replaced_by(wanted, present.members(), before)
        staying = _ids(wanted.final().members())
        if state.level < REPLACED_LEVEL and staying.intersection(
            self._host.members_below(REPLACED_LEVEL)
        ):
            return body_of(wanted)
        return body_of(wanted, replaced)

    def may_say(self, level: int) -> bool:
        """May entries of this level be written? No member is of a release that could not read one, or is
        to return to one."""
        state = self.appended
        if state is not None and state.level >= level:
            return True
        return level <= self.automatic_level and not self._host.members_below(level)

    @property
    def automatic_level(self) -> int:
        """The level of entries written once all members report that they know it: that of the releases
        by which the group was formed."""
        return max(AUTOMATIC_LEVEL, self._directory.formation.level)

    @property
    def level(self) -> int:
        """Of the log's format, up to which it may have entries by now; -1: not known."""
        state = self.committed
        return -1 if state is None else max(self.automatic_level, state.level)

    # ---------------------------------------------------------------- what happens to the log

    def append(self, batch: EntryBatch, boundaries: Sequence[LogPoint] = ()) -> None:
        """Stamped entries were written, whose bodies are whole; segments begin after these points."""
        controls = controls_of(batch)
        if not controls and not boundaries:
            return
        assert self._directory.may_hold_control_entries or all(
            entry.kind is EntryKind.NOOP for entry in controls
        ), controls[0]
        for entry in controls:
            if isinstance(entry.body, MembershipBody):
                self._raft.members.on_appended(entry.index, membership_of(entry.body))
        if self.states is not None:
            self._saver.note(
                append_past_boundaries(self.states, batch.first_index, controls, boundaries)
            )
            self._judge()
            appended = self.states.appended
            if isinstance(appended, LogState) and appended.time_index >= batch.first_index:
                self._time_written(appended)
        elif self._reading is not None:
            self._reading.behind += controls
            self._reading.boundaries_after += boundaries

    def truncate_from(self, index: int) -> None:
        """Entries from `index` on are gone; in async mode perhaps committed ones."""
        self._committed_index = min(self._committed_index, index - 1)
        self._saver.truncate_from(index)
        reading = self._reading
        if reading is not None and index >= reading.stop_index:
            reading.truncate_from(index)
        elif self.states is None:
            self._reading = None
        elif index > self.states.committed_index:
            self.states.truncate_from(index)
            self._judge()
        else:
            self._forget()

    def commit(self, index: int) -> None:
        if index > self._committed_index:
            self._committed_index = index
            if self.states is not None:
                self.states.commit(index)

    def _judge(self) -> None:
        """Tell the core if the state became known, or is no longer."""
        assert self.states is not None
        state = self.states.appended
        self._reason = state.reason if isinstance(state, UnknownState) else ""
        self._tell(isinstance(state, LogState))

    def _tell(self, is_known: bool) -> None:
        if is_known != self._is_known:
            self._is_known = is_known
            self._raft.on_log_state(is_known=is_known)

    # ---------------------------------------------------------------- reading the log

    def _forget(self) -> None:
        self.states = self._reading = None
        self._tell(False)

    def next_wakeup_ms(self) -> float:
        return self._saver.next_wakeup_ms() if self.states is not None else self._retry_ms

    def tick(self, now_ms: float) -> None:
        if self.states is not None:
            self._saver.tick(now_ms, self._committed_index)
            return
        if self._reading is None:
            self._reading = LogStateReading(self._store)
        elif now_ms < self._retry_ms:
            return
        self._retry_ms = math.inf
        self._read_on(self._reading, now_ms)

    def _read_on(self, reading: LogStateReading, now_ms: float) -> None:
        if reading.is_done:
            self._finish(reading)
            return
        committed_index = self._committed_index

        def done(result: StoreFailure | LedgerError | None) -> None:
            if reading is not self._reading:
                return  # the log was cut: it begins again
            if result is None:
                self._note_kinds(reading)
                self._read_on(reading, now_ms)
            elif isinstance(result, IndexOutOfRange):
                self._reading = None  # its first entries are gone: again, from where it begins now
            elif not isinstance(result, DirectoryDamaged | LedgerError):
                raise result
            else:
                self._reason = str(result)
                self._retry_ms = now_ms + RETRY_MS
                if isinstance(result, DirectoryDamaged):
                    self._found(result)

        self._host.read_later(lambda: reading.read_on(committed_index), done)

    def _note_kinds(self, reading: LogStateReading) -> None:
        """What an older copy of the file `member` does not say."""
        if reading.level:
            with suppress(DiskFull):  # the next start finds it out again, or the next such entry says it
                self._note(reading.level, users=False)

    def _finish(self, reading: LogStateReading) -> None:
        self._reading = None
        self.states, boundary_states = reading.finished()
        if self._committed_index > self.states.committed_index:
            self.states.commit(self._committed_index)
        if isinstance(self.states.appended, LogState):
            founding = Membership.of(self._directory.formation.founding)
            self._raft.members.on_read(
                [
                    (index, membership_of(body) if body is not None else founding)
                    for index, body in self.states.memberships()
                ]
            )
        if self.appended is not None and self.appended.users.is_on:
            with suppress(DiskFull):  # an older copy of the file `member`; see above
                self._note(LEVELS[EntryKind.USERS], users=True)
        self._saver.note(boundary_states)
        self._judge()
