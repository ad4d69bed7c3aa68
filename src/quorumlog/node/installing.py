"""Replacing a log: dropped entries, and the start that another member sends."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from quorumlog.consensus.messages import (
    InstallRequest,
    InstallResponse,
    InstallResult,
    PushEntryRequest,
    SnapshotRequest,
    SnapshotResponse,
)
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, EntryKind, Replica, SnapshotId
from quorumlog.errors import DiskFull, LedgerError, StoreFailure
from quorumlog.figures import now
from quorumlog.log_state.control_entries import LEVELS, Unreadable
from quorumlog.log_state.log_state import decode_state
from quorumlog.node.ports import LogReplaced, Member
from quorumlog.store.disk import is_lack_of_space, reason_of
from quorumlog.store.log_points import LogStart
from quorumlog.store.snapshots import (
    ReceivedSnapshot,
    SnapshotDamaged,
    SnapshotsUnavailable,
)
from quorumlog.store.state_files import MOST_START_BYTES, START_NAME, decode_start

# ---------------------------------------------------------------- LogDrops
# The first segments of this member's log go, one drop at a time.
#
#     the core            compares, pushes and cuts nothing at or below the new begin
#     beside the loop     the start comes to disk
#     the store           lets go of what lies below: who reads there gets IndexOutOfRange
#     beside the loop     the files are deleted, oldest first
#
# Killed at any step, the log begins where it did or at the new start.

DELETE_INTERVAL_MS = 1000


class LogDrops:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._directory, self._store = member.directory, member.store
        self._raft, self._host = member.raft, member.host
        self._carry_out = member.carry_out_all
        self._start: LogStart | None = None
        """Of the drop that is under way."""
        self._unsaved: LogStart | None = None
        """It found no space, and the core begins there already: it is saved once there is some."""
        self._is_turn_of_start = False
        self._is_deleting = False
        self._next_look_ms = 0.0
        self.problem = ""
        """Why the newest one found no space; in a sentence."""

    @property
    def is_under_way(self) -> bool:
        return self._start is not None or self._is_deleting

    def begin(self, start: LogStart) -> bool:
        """Make the log begin after `start`, a saved boundary whose next entry is committed and on this
        member's disk. False: another drop is under way, and nothing has changed."""
        index, durable_index = start.point.index, self._member.durable_committed_index
        # With the entry after it: another leader's, of another length, could lie elsewhere.
        assert self._store.begin.index < index < durable_index, (start, self._store.begin)
        assert not start.replaces, start
        if self.is_under_way:
            return False
        held = self._store.start
        if held is not None and held.owed_index > self._store.durable.index:
            # What was owed since the log was installed is owed above another start as well.
            start = msgspec.structs.replace(start, owed_index=held.owed_index)
        self._save(start)
        return True

    def _save(self, start: LogStart) -> None:
        self._carry_out()
        if start.point.index > self._raft.begin.index:  # else it was tried before
            self._raft.drop_before(start.point.entry_id)
        self._start = start
        # Not with the flushes: no append waits for what is dropped.
        self._host.read_later(partial(self._directory.save_start, start), self._saved)

    def tick(self, now_ms: float) -> None:
        """Retry saves and deletions that a full disk prevented."""
        if now_ms < self._next_look_ms or self.is_under_way:
            return
        self._next_look_ms = now_ms + DELETE_INTERVAL_MS
        if self._unsaved is not None:
            # What is deleted makes space for it: one look is for the one, the next for the other.
            self._is_turn_of_start = not self._is_turn_of_start
            if self._is_turn_of_start:
                self._save(self._unsaved)
                return
        work = self._store.left_to_delete()
        if work is not None:
            self._is_deleting = True
            self._host.read_later(work, self._deleted)

    def give_up_below(self, start: LogStart) -> None:
        """Damaged entries below this start of another member's log are on no member any more. The state
        that comes with it covers the same entries, if the entry before it is this log's as well."""
        index = start.point.index
        if not self._raft.begin.index < index < self._member.durable_committed_index:
            return
        if self._raft.term_at(index) == start.point.term:
            self.begin(LogStart(start.point, start.record))

    def must_wait(self, message: PushEntryRequest) -> bool:
        """While the start comes to disk nothing is cut directly after it: the next entry lies where
        the start says because of the one that a cut would take away. Async mode alone orders such a
        cut."""
        start = self._start or self._unsaved
        if start is None:
            return False
        cut_index = self._raft.pushes.conflict_of(message)
        return cut_index is not None and cut_index <= start.point.index + 1

    def _saved(self, result: StoreFailure | LedgerError | None) -> None:
        start, self._start = self._start, None
        assert start is not None
        if isinstance(result, DiskFull):
            self.problem = str(result)
            if self._unsaved is None or self._unsaved.point.index < start.point.index:
                self._unsaved = start
            return
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        self.problem = ""
        if self._unsaved is not None and self._unsaved.point.index <= start.point.index:
            self._unsaved = None
        self._carry_out()
        damaged = self._store.damaged
        delete = self._store.drop_before(start)
        if self._store.damaged != damaged:
            left = [(each.first_index, each.stop_index) for each in self._store.damaged]
            self._raft.on_repaired(left)
        self._is_deleting = True
        self._host.read_later(delete, self._deleted)

    def _deleted(self, result: StoreFailure | LedgerError | None) -> None:
        self._is_deleting = False
        if result is not None:
            raise result


# ---------------------------------------------------------------- LogReplacement
# A leader's log begins above this member's; the member takes over the start of it.
#
#   pieces of the start come    they are kept beside the old log, which goes on voting and comparing
#   snapshots are named         those of this member's machines that it lacks are fetched, beside it, too
#   all is whole                one check: is it still needed, and is nothing committed in the way?
#   one synced slot             `replaces`: whatever segments lie here are of another log
#   `LogReplaced`               the node is given up, and made anew as at a start of the process
#
# What is left of the old log goes as at any start that finds `replaces`, so killed at any step the
# member has the old log or the new one. The node ends inside the turn that decides: nothing of the old
# log is promised any more once the slot may be on disk.


class LogReplacement:
    def __init__(
        self,
        member: Member,
        fetcher: SnapshotFetcher,
        drops: LogDrops,
        runs_machine: Callable[[str], bool],
    ) -> None:
        """`drops`: while a start of its own is on its way to the disk, another one has to wait.
        `runs_machine`: does this member?"""
        self._member = member
        self._raft, self._host = member.raft, member.host
        self._fetcher = fetcher
        self._drops = drops
        self._runs_machine = runs_machine
        self._staged_file: tuple[EntryId, int] | None = None
        """(begin, bytes of the whole) of what is staged: another leader's record of that begin may be
        of another length, and goes on in none of this one's pieces."""
        self._newest: InstallRequest | None = None
        self._staged = bytearray()
        self._is_whole = False
        self.problem = ""
        """Why the newest start was not taken; in a sentence."""

    def on_request(self, request: InstallRequest) -> None:
        """Raises LogReplaced once this member's log is another one."""
        self._member.carry_out_all()
        raft = self._raft
        if request.term != raft.term or raft.leader != request.sender:
            return  # its heartbeats come first
        refusal = raft.judge_install(request.begin, request.sender)
        if refusal is not None:
            self._forget()
            self._answer(request, refusal)
            return
        if request.file != START_NAME or request.total_bytes > MOST_START_BYTES:
            self._refuse(request, f"a file {request.file!r} of {request.total_bytes} bytes is unknown")
            return
        if (request.begin, request.total_bytes) != self._staged_file:
            self._forget()
            self._staged_file = request.begin, request.total_bytes
        if request.offset == len(self._staged):
            self._staged += request.data
            self._is_whole = len(self._staged) == request.total_bytes and request.last
        self._newest = request
        lacks = self._lacks_snapshots(request)
        if lacks and self._fetcher.lacks_space:
            self._refuse(request, "there is no space for the snapshots that go with it")
            return
        if not self._is_whole or lacks or self._drops.is_under_way:
            self._answer(request, InstallResult.MORE)
            return
        staged = bytes(self._staged)
        self._forget()
        self._replace(request, staged)

    def _lacks_snapshots(self, request: InstallRequest) -> bool:
        wanted = tuple(each for each in request.snapshots if self._runs_machine(each.name))
        return self._fetcher.want_all(request.sender, wanted, self._snapshot_arrived)

    def _snapshot_arrived(self) -> None:
        """The newest request is judged once more. Raises LogReplaced."""
        if self._newest is not None:
            self.on_request(self._newest)

    def _replace(self, request: InstallRequest, staged: bytes) -> None:
        """All is held meanwhile: what was judged is still true when the slot is on disk."""
        try:
            start = decode_start(staged)
        except (ValueError, msgspec.MsgspecError) as error:
            self._refuse(request, f"it cannot be read: {error}")
            return
        state = decode_state(start.record)
        if isinstance(state, Unreadable):
            self._refuse(request, state.reason)
            return
        segment_bytes = self._member.config.storage.segment_bytes
        if start.point.entry_id != request.begin or start.point.position % segment_bytes:
            self._refuse(request, f"it names {start.point}")
            return
        start = LogStart(start.point, start.record, replaces=True, owed_index=request.committed_index)
        committed_index = self._raft.committed_index
        self._host.replacing_log(start)
        if request.begin.index < committed_index:
            self._host.lost_committed(request.begin.index + 1)
        directory, has_users = self._member.directory, state.users.is_on

        def save() -> None:
            if has_users:
                directory.allow_control_entries(LEVELS[EntryKind.USERS], users=True)
            directory.save_start(start)

        def saved(refusal: LedgerError | None) -> None:
            if refusal is None:
                raise LogReplaced(start)
            self._refuse(request, str(refusal))

        self._member.hold(save, saved)

    def _refuse(self, request: InstallRequest, reason: str) -> None:
        self.problem = (
            f"the start of the log that {request.sender.member_id} sends"
            f"{now(f'after entry {request.begin.index}')} cannot be taken: {reason}"
        )
        self._answer(request, InstallResult.REFUSED)

    def _forget(self) -> None:
        self._staged_file, self._staged, self._is_whole, self._newest = None, bytearray(), False, None
        self._fetcher.forget_installation()
        self.problem = ""

    def _answer(self, request: InstallRequest, result: InstallResult) -> None:
        response = InstallResponse(
            sender=self._member.replica,
            term=self._raft.term,
            begin=request.begin,
            result=result,
            file=request.file,
            offset=len(self._staged),
        )
        self._host.send(Envelope(request.sender, response))


# ---------------------------------------------------------------- SnapshotFetcher
# Snapshots that this member lacks come from others, one after the other.
#
#     an installation     the leader names them; all are here before the old log makes way
#     a machine           nothing here tells what it was at the begin of the log: a member with a
#     snapshot
#
# This member asks for each piece, once it has written the one before, and names where it is. So a
# connection that breaks costs one piece, and either end has one piece in memory. What has come is
# compared whole, from the disk, before it counts (`ReceivedSnapshot`); it is adopted only where the log
# holds the entry that it names.

NEVER = math.inf
MOST_BACK_OFF = 16
MACHINES_LEVEL = LEVELS[EntryKind.MACHINE]
"""An earlier release would take a question about machines for nonsense, and close the connection."""
REFUSED_RETRY_MS = 1_000
"""Retried after this time if no member has one, or the disk has refused it."""


class _Want(NamedTuple):
    name: str
    least_index: int
    exact: SnapshotId | None
    source: Replica | None
    """None: the leader first, then any connected member."""
    arrived: Callable[[], None]


class SnapshotFetcher:
    def __init__(self, member: Member) -> None:
        self._tick_soon = member.housekeeping.stir
        self._replica, self._raft, self._host = member.replica, member.raft, member.host
        self._files = member.directory.snapshots
        self._resend_ms = float(member.config.consensus.push_resend_ms)
        self._connected: list[Replica] = []
        self._wants: dict[str, _Want] = {}
        """By machine; an installation's take the place of a machine's own."""
        self._here: set[SnapshotId] = set()
        """Compared whole by this process."""
        self._want: _Want | None = None
        """Under way."""
        self._source: Replica | None = None
        self._id: SnapshotId | None = None
        """What the source has."""
        self._part: ReceivedSnapshot | None = None
        self._is_busy = False
        """With the disk."""
        self._ask_at_ms = 0.0
        self._wait_ms = 0.0
        self._rotation = 0
        self._now_ms = 0.0
        self._problem = ""
        self.lacks_space = False
        """The disk had no room for the piece that came last."""

    # ---------------------------------------------------------------- what is wanted

    def want(self, name: str, least_index: int, arrived: Callable[[], None]) -> None:
        """Request the snapshot from any member."""
        known = self._wants.get(name)
        if known is None or (known.exact is None and known.least_index < least_index):
            self._wants[name] = _Want(name, least_index, None, None, arrived)

    def forget(self, name: str) -> None:
        """The machine runs, or looks for a snapshot again."""
        known = self._wants.get(name)
        if known is not None and known.exact is None:
            del self._wants[name]

    def want_all(
        self, source: Replica, wanted: tuple[SnapshotId, ...], arrived: Callable[[], None]
    ) -> bool:
        """These very ones, for an installation. False: all are here."""
        missing = [each for each in wanted if each not in self._here]
        for each in missing:
            known = self._wants.get(each.name)
            if known is None or known.exact != each or known.source != source:
                self._wants[each.name] = _Want(each.name, each.index, each, source, arrived)
        return bool(missing)

    def forget_installation(self) -> None:
        self._wants = {name: want for name, want in self._wants.items() if want.exact is None}

    def connected(self, replica: Replica) -> None:
        self.connection_lost(replica)
        self._connected.append(replica)
        if replica == self._source:
            self._ask_at_ms, self._wait_ms = 0.0, 0.0

    def connection_lost(self, replica: Replica) -> None:
        self._connected = [each for each in self._connected if each != replica]

    # ---------------------------------------------------------------- the loop

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if self._is_busy or not (self._wants or self._part):
            return
        if self._want is None or self._wants.get(self._want.name) is not self._want:
            self._begin(next(iter(self._wants.values()), None))
        if self._want is None:
            return
        if self._part is None and self._id is not None:
            self._work(partial(ReceivedSnapshot, self._files, self._id))
        elif self._part is not None and self._part.is_whole:
            self._work(self._part.verify)
        elif now_ms >= self._ask_at_ms:
            self._ask(self._want)

    def next_wakeup_ms(self) -> float:
        return self._ask_at_ms if self._wants and not self._is_busy else NEVER

    def _begin(self, want: _Want | None) -> None:
        """What has come of the one before stays on the disk: it may be wanted again."""
        if self._part is not None:
            self._part.close()
        self._want, self._part, self._problem = want, None, ""
        self._id = None if want is None else want.exact
        self._ask_at_ms = self._wait_ms = 0.0
        self._choose_source()

    def _choose_source(self) -> None:
        want, leader = self._want, self._raft.leader
        if want is None or want.source is not None:
            self._source = None if want is None else want.source
            return
        too_old = self._host.members_below(MACHINES_LEVEL)
        candidates = [each for each in self._connected if each.member_id not in too_old]
        others = [each for each in candidates if each != leader]
        if leader in candidates and leader is not None:
            others.insert(0, leader)
        self._source = others[self._rotation % len(others)] if others else None

    def _ask(self, want: _Want) -> None:
        if self._source is None or (want.source is None and self._source not in self._connected):
            self._id = want.exact
            self._choose_source()
        self._wait_ms = min(2 * self._wait_ms or self._resend_ms, MOST_BACK_OFF * self._resend_ms)
        self._ask_at_ms = self._now_ms + self._wait_ms
        if self._source is not None:
            request = SnapshotRequest(
                sender=self._replica,
                term=self._raft.term,
                name=want.name,
                least_index=want.least_index,
                wanted=self._id,
                offset=0 if self._part is None else self._part.size_bytes,
            )
            self._host.send(Envelope(self._source, request))

    def on_response(self, response: SnapshotResponse) -> None:
        want = self._want
        if want is None or response.sender != self._source or response.name != want.name:
            return
        if self._is_busy:
            return  # of a repetition; what is at work on the disk has the file open
        if response.found is None or response.found.index < want.least_index:
            self._go_elsewhere()
        elif self._id is None:
            self._id = response.found
            self._wait_ms = self._ask_at_ms = 0.0
        elif response.found != self._id:
            return  # of an earlier request
        elif self._part is not None and response.offset == self._part.size_bytes:
            if not response.data:
                return
            self._wait_ms = self._ask_at_ms = 0.0
            self._work(partial(self._part.write, response.offset, response.data))

    def _go_elsewhere(self) -> None:
        """The source has none, or not that one any more."""
        assert self._want is not None
        if self._part is not None:
            self._part.close()
        self._part, self._id = None, self._want.exact
        self._rotation += 1
        self._choose_source()
        self._wait_ms, self._ask_at_ms = 0.0, self._now_ms + REFUSED_RETRY_MS

    # ---------------------------------------------------------------- the disk

    def _work(self, step: Callable[[], ReceivedSnapshot | bool | None]) -> None:
        want, part = self._want, self._part
        self._is_busy = True

        def work() -> object:
            try:
                return step()
            except SnapshotsUnavailable as problem:
                if part is not None:
                    part.close()  # which says nothing of what has come, or lay there before
                return problem
            except (OSError, SnapshotDamaged) as problem:
                if part is not None and isinstance(problem, OSError) and is_lack_of_space(problem):
                    part.close()  # it goes on from what has come, once there is room
                elif part is not None:
                    part.drop()
                return problem

        def worked(result: object) -> None:
            self._is_busy = False
            if not isinstance(result, ReceivedSnapshot):  # to open a file needs no room yet
                self.lacks_space = isinstance(result, OSError) and is_lack_of_space(result)
            self._tick_soon()
            if isinstance(result, ReceivedSnapshot):
                self._part = result
            elif isinstance(result, SnapshotsUnavailable | SnapshotDamaged | OSError):
                self._refused(result)
            elif result is True:
                self._is_here(want)
            elif isinstance(result, Exception):
                raise result

        self._host.apply_later(work, worked)

    def _refused(self, problem: Exception) -> None:
        self._problem = f"a snapshot of another member could not be taken: {reason_of(problem)}"
        self._part = None
        self._wait_ms, self._ask_at_ms = 0.0, self._now_ms + REFUSED_RETRY_MS
        if self._want is not None:
            self._id = self._want.exact

    def _is_here(self, want: _Want | None) -> None:
        assert want is not None and self._part is not None
        self._here = {each for each in self._here if each.name != want.name} | {self._part.id}
        self._part = None
        if self._wants.get(want.name) is want:
            del self._wants[want.name]
        self._want, self._problem, self._rotation = None, "", 0
        want.arrived()

    # ---------------------------------------------------------------- what operators ask

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []
