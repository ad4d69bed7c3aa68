"""LogStateKeeper: what follows from the control entries of this member's log (`quorumlog.log_state`).

    entries are written    the control entries among them lead to the next state, on every member alike
    a cut                  back to the committed state, and forth again
    a commit               the committed state follows

A start reads the control entries of the whole log beside the loop; where the file `member` says that
there are none it reads nothing. Async mode does the same when it cuts committed entries. While the state
is not known, this member votes and takes entries, but neither campaigns nor leads: what it wrote as a
leader could contradict an entry that it cannot read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import EntryKind
from quorumlog.errors import BadRequest, DirectoryDamaged, LeaderNotReady, LedgerError, StoreFailure
from quorumlog.log_state.control_entries import LEVELS, ControlEntry, decode_body
from quorumlog.log_state.control_entries import Membership as MembershipBody
from quorumlog.log_state.log_state import EMPTY, LogState, UnknownState
from quorumlog.log_state.log_states import LogStates
from quorumlog.node.ports import Host
from quorumlog.store.directory.opened_directory import MemberDirectory

CHUNK_ENTRIES = 65536
"""So many are looked at before the read thread does something else."""
RETRY_MS = 500
"""Where damage keeps it from being read, it is tried again."""


class _Reading:
    """The states of the log up to `next_index`, which grow up to `stop_index`."""

    def __init__(self, begin_index: int, stop_index: int) -> None:
        self.states = LogStates(EMPTY, begin_index)
        self.next_index = begin_index + 1
        self.stop_index = stop_index
        self.behind: list[ControlEntry] = []
        """Written from `stop_index` on since it began."""


class LogStateKeeper:
    def __init__(
        self,
        directory: MemberDirectory,
        raft: RaftNode,
        host: Host,
        found: Callable[[DirectoryDamaged], None],
    ) -> None:
        """`found` is told of damage that the reading meets."""
        self._directory = directory
        self._store = directory.store
        self._raft = raft
        self._host = host
        self._found = found
        self._committed_index = max(self._store.begin.index, directory.committed_index)
        self.states: LogStates | None = LogStates(EMPTY, self._committed_index)
        """None: they have to be read from the log."""
        self._is_known = True
        self._reading: _Reading | None = None
        self._retry_ms = math.inf
        """When the reading goes on; infinite while it is at work."""
        self._reason = ""
        """What keeps the state from being known."""
        if directory.may_hold_control_entries:
            self._forget()

    @property
    def problem(self) -> str:
        """In a sentence; empty if there is none."""
        if not self._reason:
            return ""
        return f"the state of the log is not known, and this member does not lead: {self._reason}"

    # ---------------------------------------------------------------- before entries are written

    def admit(self, batch: EntryBatch) -> None:
        """Entries of another member are about to be taken. Raises DiskFull."""
        if not self._directory.may_hold_control_entries and batch.log_state_positions():
            self._directory.allow_control_entries()

    def admit_own(self, kind: EntryKind) -> None:
        """This leader is about to write an entry of this kind. Raises LeaderNotReady, BadRequest while
        not every member knows the kind, DiskFull."""
        if not self._is_known:
            raise LeaderNotReady(self.problem, retry_after_ms=RETRY_MS)
        level = self._host.known_level()
        if self.states is not None and isinstance(self.states.appended, LogState):
            level = max(level, self.states.appended.level)  # else that would not stand in the log
        if level < LEVELS[kind]:
            raise BadRequest(
                f"{kind.name} entries need level {LEVELS[kind]} of the log's format; not every member is"
                f" known to have it (the lowest that was named is {level})"
            )
        self._directory.allow_control_entries()

    # ---------------------------------------------------------------- what happens to the log

    def append(self, batch: EntryBatch) -> None:
        """Stamped entries were written, whose bodies are whole."""
        controls = controls_of(batch)
        if not controls:
            return
        assert self._directory.may_hold_control_entries, controls[0]
        for entry in controls:
            if isinstance(entry.body, MembershipBody):
                self._raft.members.on_appended(entry.index, membership_of(entry.body))
        if self.states is not None:
            self.states.append(batch.first_index, controls)
            self._judge()
        elif self._reading is not None:
            self._reading.behind += controls

    def truncate_from(self, index: int) -> None:
        """Entries from `index` on are gone; in async mode perhaps committed ones."""
        self._committed_index = min(self._committed_index, index - 1)
        reading = self._reading
        if reading is not None and index >= reading.stop_index:
            reading.behind = [entry for entry in reading.behind if entry.index < index]
        elif self.states is None:
            self._reading = None
        elif index > self.states.committed_index:
            self.states.truncate_from(index)
            self._judge()
        elif self._directory.may_hold_control_entries:
            self._forget()
        else:
            self.states = LogStates(EMPTY, index - 1)

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
        return self._retry_ms if self.states is None else math.inf

    def tick(self, now_ms: float) -> None:
        if self.states is not None:
            return
        if self._reading is None:
            self._reading = _Reading(self._store.begin.index, self._store.end.index + 1)
        elif now_ms < self._retry_ms:
            return
        self._retry_ms = math.inf
        self._read_on(self._reading, now_ms)

    def _read_on(self, reading: _Reading, now_ms: float) -> None:
        if reading.next_index == reading.stop_index:
            self._finish(reading)
            return
        store, committed_index = self._store, self._committed_index

        def read() -> None:
            first_index = reading.next_index
            stop_index = min(first_index + CHUNK_ENTRIES, reading.stop_index)
            batches = store.control_batches(first_index, stop_index)
            controls = [entry for batch in batches for entry in controls_of(batch)]
            reading.states.append(first_index, controls)
            # What cannot be cut any more is held as a state, not as entries.
            proven_index = min(committed_index, stop_index - 1)
            if proven_index > reading.states.committed_index:
                reading.states.commit(proven_index)
            reading.next_index = stop_index

        def done(result: StoreFailure | LedgerError | None) -> None:
            if reading is not self._reading:
                return  # the log was cut: it begins again
            if result is None:
                self._read_on(reading, now_ms)
                return
            if not isinstance(result, DirectoryDamaged | LedgerError):
                raise result
            self._reason = str(result)
            self._retry_ms = now_ms + RETRY_MS
            if isinstance(result, DirectoryDamaged):
                self._found(result)

        self._host.read_later(read, done)

    def _finish(self, reading: _Reading) -> None:
        self.states, self._reading = reading.states, None
        if reading.behind:
            self.states.append(reading.stop_index, reading.behind)
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
        self._judge()


def membership_of(body: MembershipBody) -> Membership:
    return Membership(body.old, body.new, body.learners, body.addresses)


def body_of(membership: Membership) -> MembershipBody:
    return MembershipBody(*membership)


def controls_of(batch: EntryBatch) -> list[ControlEntry]:
    """Those of kinds above NOOP."""
    positions = batch.log_state_positions()
    if not positions:
        return []
    magics, first_index = batch.headers()["magic"], batch.first_index
    kinds = {at: EntryKind(int(magics[at])) for at in positions}
    return [
        ControlEntry(first_index + at, kind, decode_body(kind, batch.body(at)))
        for at, kind in kinds.items()
    ]
