"""LogStateKeeper: what follows from the control entries of this member's log (`quorumlog.log_state`).

    entries are written    the control entries among them lead to the next state, on every member alike
    a cut                  back to the committed state, and forth again
    a commit               the committed state follows
    a segment begins       the state in front of it is saved, once that is committed (border_saver.py)

A start reads the control entries behind the newest saved state beside the loop (log_state_reading.py),
and so does async mode when it cuts committed entries. The file `member` may be an older copy, which says
that there are none: that is found out, too. While the state is not known, this member votes and takes
entries, but neither campaigns nor leads: what it wrote as a leader could contradict an entry that it
cannot read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from quorumlog.batch import EntryBatch
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import EntryKind
from quorumlog.errors import (
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    LevelNotTold,
    StoreFailure,
    UpgradeNotFinished,
)
from quorumlog.log_state.control_entries import AUTOMATIC_LEVEL, LEVEL, LEVELS, REPLACED_LEVEL
from quorumlog.log_state.control_entries import Membership as MembershipBody
from quorumlog.log_state.log_state import EMPTY, AnyState, LogState, LogStates, UnknownState
from quorumlog.node.ports import Host
from quorumlog.node.writing.border_saver import BorderSaver
from quorumlog.node.writing.log_state_reading import LogStateReading, append_past_borders, controls_of
from quorumlog.node.writing.memberships import body_of, membership_of, replaced_by
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.member_directory import MemberDirectory

RETRY_MS = 500
"""Where damage keeps it from being read, it is tried again."""


class LogStateKeeper:
    def __init__(
        self,
        directory: MemberDirectory,
        raft: RaftNode,
        host: Host,
        found: Callable[[DirectoryDamaged], None],
        tick_soon: Callable[[], None],
        time_written: Callable[[LogState], None],
    ) -> None:
        """`found` is told of damage that the reading meets. `tick_soon`: see BorderSaver.
        `time_written`: of a time mark or a reset, with the state behind it."""
        self._directory = directory
        self._store = directory.store
        self._raft = raft
        self._host = host
        self._found = found
        self._time_written = time_written
        self._committed_index = max(self._store.begin.index, directory.committed_index)
        self.states: LogStates | None = LogStates(EMPTY, self._committed_index)
        """None: they have to be read from the log."""
        self._is_known = True
        self._reading: LogStateReading | None = None
        self._retry_ms = math.inf
        """When the reading goes on; infinite while it is at work."""
        self._reason = ""
        """What keeps the state from being known."""
        self._saver = BorderSaver(self._store, host, tick_soon)
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
        return self._known(None if self.states is None else self.states.appended)

    def committed_state(self) -> LogState:
        """Up to the committed index. Raises LeaderNotReady while it is not known."""
        return self._known(None if self.states is None else self.states.committed)

    def _known(self, state: AnyState | None) -> LogState:
        if isinstance(state, LogState):
            return state
        raise LeaderNotReady(
            self.problem or "the state of the log is being read", retry_after_ms=RETRY_MS
        )

    # ---------------------------------------------------------------- before entries are written

    def admit(self, batch: EntryBatch) -> None:
        """Entries of another member are about to be taken. Raises DiskFull."""
        if self._directory.may_hold(LEVEL):
            return
        positions = batch.log_state_positions()
        if positions:
            level = max(LEVELS.get(EntryKind(kind), 0) for kind, _ in batch.kinds_and_terms(positions))
            self._directory.allow_control_entries(level)

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

    def admit_own(self, kind: EntryKind, leaving: Collection[str] = ()) -> None:
        """This leader is about to write such an entry. `leaving`: ids of members that it removes, and
        who need not know it: one that is lost for good must not keep everybody from removing it. Raises
        LeaderNotReady, UpgradeNotFinished, LevelNotTold while not every member knows it, DiskFull."""
        if not self._is_known:
            raise LeaderNotReady(self.problem, retry_after_ms=RETRY_MS)
        state = None if self.states is None else self.states.appended
        # Whoever cannot read entries of the state's level cannot read this log any more.
        level = LEVELS[kind]
        if not isinstance(state, LogState) or state.level < level:
            if level > self.automatic_level and kind is not EntryKind.LEVEL:
                raise UpgradeNotFinished(
                    f"{kind.name} entries need level {level} of the log's format: run quorumlog upgrade"
                    " finish once every member runs this release"
                )
            below = [each for each in self._host.members_below(level) if each not in leaving]
            if below:
                raise LevelNotTold(
                    f"{kind.name} entries need level {level} of the log's format, and"
                    f" {', '.join(below)} has not told this leader's process that it knows it:"
                    " start it with this release, or remove it if it is lost"
                    f" (quorumlog member remove {below[0]})"
                )
        self._directory.allow_control_entries(LEVELS[kind])

    def membership_body(self, wanted: Membership) -> MembershipBody:
        """What the log is to say where these become the members. Entries that named a directory may be
        gone by the time that it comes back, so each names those that were replaced: as long as no member
        is of a release that could not read it. Raises LeaderNotReady."""
        state, present = self.appended_state(), self._raft.status().membership
        before = () if state.membership is None else state.membership.replaced
        replaced = replaced_by(wanted, present.members(), before)
        staying = {replica.member_id for replica in wanted.final().members()}
        if state.level < REPLACED_LEVEL and staying.intersection(
            self._host.members_below(REPLACED_LEVEL)
        ):
            return body_of(wanted)
        return body_of(wanted, replaced)

    def may_say(self, level: int) -> bool:
        """What entries of this level say: no member is of a release that could not read one, or is to go
        back to one."""
        state = self.appended
        if state is not None and state.level >= level:
            return True
        return level <= self.automatic_level and not self._host.members_below(level)

    @property
    def automatic_level(self) -> int:
        """Up to here entries are written once all members have said that they know them: that of the
        releases by which the group has formed."""
        return max(AUTOMATIC_LEVEL, self._directory.formation.level)

    @property
    def level(self) -> int:
        """Of the log's format, up to which it may have entries by now; -1: not known."""
        state = self.committed
        return -1 if state is None else max(self.automatic_level, state.level)

    # ---------------------------------------------------------------- what happens to the log

    def append(self, batch: EntryBatch, borders: Sequence[LogPoint] = ()) -> None:
        """Stamped entries were written, whose bodies are whole; segments begin behind these points."""
        controls = controls_of(batch)
        if not controls and not borders:
            return
        assert self._directory.may_hold_control_entries or all(
            entry.kind is EntryKind.NOOP for entry in controls
        ), controls[0]
        for entry in controls:
            if isinstance(entry.body, MembershipBody):
                self._raft.members.on_appended(entry.index, membership_of(entry.body))
        if self.states is not None:
            self._saver.note(append_past_borders(self.states, batch.first_index, controls, borders))
            self._judge()
            appended = self.states.appended
            if isinstance(appended, LogState) and appended.time_index >= batch.first_index:
                self._time_written(appended)
        elif self._reading is not None:
            self._reading.behind += controls
            self._reading.borders_behind += borders

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
        if reading.level and not self._directory.may_hold(reading.level):
            with suppress(DiskFull):  # the next start finds it out again, or the next such entry says it
                self._directory.allow_control_entries(reading.level)

    def _finish(self, reading: LogStateReading) -> None:
        self._reading = None
        self.states, at_borders = reading.finished()
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
        self._saver.note(at_borders)
        self._judge()
