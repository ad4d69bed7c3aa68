"""Retention: the oldest segments of the log go.

    once a second       borders, their times and the disk are looked at, beside the loop
    the leader          writes KEEP: from which index on everything stays
    once committed      each member drops what lies below, up to a border of its own

What may go is decided in the log and nowhere else: told in a heartbeat, it could pass a hold that
commits between the telling and the deleting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from quorumlog.config import GroupConfig
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryId, Replica
from quorumlog.errors import DiskFull, LeaderNotReady, LedgerError, StoreFailure
from quorumlog.log_state.control_entries import ControlBody, Keep, TimeMark
from quorumlog.log_state.log_state import LogState, LostRange, decode_state
from quorumlog.node.ports import Host
from quorumlog.node.retention.border_times import KnownBorder, with_times
from quorumlog.node.retention.segments_kept import (
    HOUR_MS,
    Border,
    Decision,
    Follower,
    KeptSegment,
    LogShape,
    Policy,
    decide,
    kept_segments,
)
from quorumlog.node.writing.log_state_keeper import LogStateKeeper
from quorumlog.store.begin.marked_log import mark_of
from quorumlog.store.directory.member_directory import MemberDirectory
from quorumlog.store.ledger_store import LogStart

LOOK_INTERVAL_MS = 1000


class _Look(NamedTuple):
    borders: tuple[KnownBorder, ...]
    truncations: int
    used_ratio: float
    start: LogStart | None
    """Where the log may begin by what is committed."""


class WhyKept(NamedTuple):
    segments: tuple[KeptSegment, ...]
    keep_from_index: int
    """Committed."""
    used_ratio: float
    """Of the disk."""


class RetainingMember(Protocol):
    """What it asks of a `LedgerNode`."""

    config: GroupConfig
    directory: MemberDirectory
    raft: RaftNode
    log_state: LogStateKeeper
    durable_committed_index: int

    @property
    def is_dropping(self) -> bool: ...

    def propose_control(self, body: ControlBody) -> EntryId: ...

    def drop_before(self, start: LogStart) -> bool: ...


class Retention:
    def __init__(
        self,
        member: RetainingMember,
        host: Host,
        now_ms: float,
        snapshot_bound: Callable[[], int | None],
        due_mark: Callable[[float], TimeMark | None],
    ) -> None:
        """`snapshot_bound`: as of `StateMachineCaller`; `due_mark`: as of `TimeMarks`."""
        self._member = member
        self._store = member.directory.store
        self._raft = member.raft
        self._log_state = member.log_state
        self._host = host
        self._snapshot_bound = snapshot_bound
        self._due_mark = due_mark
        self._now_ms = now_ms
        self._next_look_ms = now_ms + LOOK_INTERVAL_MS
        self._is_looking = False
        self._known: tuple[KnownBorder, ...] = ()
        """As of the newest look."""
        self._known_truncations = -1
        self.problem = ""
        """Why nothing goes although it may, in a sentence."""
        self._installed: dict[Replica, None] = {}
        """Who got the start of this log and has not caught up since."""
        self._lost: tuple[LostRange, ...] | None = None
        """What readers had lost when it was last looked."""

    # ---------------------------------------------------------------- looking

    @property
    def _is_wanted(self) -> bool:
        storage = self._member.config.storage
        if storage.deletes and self._raft.role is Role.LEADER:
            return True
        return storage.retention != "off" and self._droppable_below() > self._store.begin.index + 1

    def _droppable_below(self) -> int:
        """By what is committed, and what the machines of this member still need; 0: nothing."""
        state, bound = self._log_state.committed, self._snapshot_bound()
        keep_from = 0 if state is None else state.keep_from_index
        return keep_from if bound is None else min(keep_from, bound + 1)

    def next_wakeup_ms(self) -> float:
        return self._next_look_ms if self._is_wanted and not self._is_looking else math.inf

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        self._tell_of_losses()
        if self._raft.role is Role.LEADER and self._member.config.storage.deletes:
            self._installed.update(dict.fromkeys(self._raft.replication.installing))
        if self._is_looking or now_ms < self._next_look_ms or not self._is_wanted:
            return
        self._next_look_ms = now_ms + LOOK_INTERVAL_MS
        self._is_looking = True
        self._host.read_later(self._look(), self._looked)

    def _last_border_index(self) -> int:
        """Of the entry before a border at which this log may begin: what follows is on this disk."""
        return min(self._member.durable_committed_index, self._store.durable.index - 1)

    def _look(self) -> Callable[[], _Look]:
        """What to do beside the loop. It raises StoreFailure."""
        keep_from, last_index = self._droppable_below(), self._last_border_index()
        state = self._log_state.committed
        newest = None if state is None else mark_of(state)

        def look() -> _Look:
            borders, truncations = self._store.borders, self._store.truncations
            known = list(self._known) if truncations == self._known_truncations else []
            for point in borders.above(known[-1].point.index if known else -1):
                if point.index > last_index:
                    break
                start = borders.saved_at(point)
                if start is None:
                    continue  # not yet, or damage has kept it from being saved
                state = decode_state(start.record)
                mark = mark_of(state) if isinstance(state, LogState) else None
                known.append(KnownBorder(point, Border(point.index + 1, point.position, None), mark))
            below = [each.point for each in known if each.border.first_index <= keep_from]
            start = borders.saved_at(below[-1]) if below else None
            timed = with_times(self._store, known, newest)
            return _Look(timed, truncations, self._member.directory.used_ratio(), start)

        return look

    def _looked(self, look: _Look | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        if isinstance(look, StoreFailure | LedgerError):
            raise look
        if look.truncations != self._store.truncations:
            return  # what was found may be gone
        self._known, self._known_truncations = look.borders, look.truncations
        if look.start is not None:
            self._drop(look.start)
        elif self._member.config.storage.deletes and self._raft.role is Role.LEADER:
            is_marked = self._mark(look)
            if not is_marked:
                self._keep(look)

    def explain(self, done: Callable[[WhyKept | LedgerError], None]) -> None:
        """`done` gets what keeps each segment, by what this member knows as the leader, or a refusal."""

        def looked(look: _Look | StoreFailure | LedgerError) -> None:
            if isinstance(look, StoreFailure):
                raise look
            done(look if isinstance(look, LedgerError) else self._explained(look))

        self._host.read_later(self._look(), looked)

    def _explained(self, look: _Look) -> WhyKept | LedgerError:
        if look.truncations != self._store.truncations:
            return LeaderNotReady("the log was cut meanwhile", retry_after_ms=LOOK_INTERVAL_MS)
        try:
            state = self._log_state.appended_state()
            committed = self._log_state.committed_state()
        except LedgerError as error:
            return error
        log = self._shape(look)
        segments = kept_segments(
            log,
            self._decide(look, state),
            state.keep_from_index,
            committed.keep_from_index,
        )
        return WhyKept(tuple(segments), committed.keep_from_index, look.used_ratio)

    # ---------------------------------------------------------------- the leader

    def _mark(self, look: _Look) -> bool:
        """A segment that is full gets its time even where nobody appends any more."""
        config = self._member.config
        if not (look.borders and config.time_marks and config.storage.file_reserved_hours):
            return False
        border = look.borders[-1].border
        try:
            state = self._log_state.appended_state()
            is_marked = border.time_ms is not None or state.time_index >= border.first_index
            mark = None if is_marked else self._due_mark(self._now_ms)
            if mark is not None:
                self._member.propose_control(mark)
        except LedgerError:
            return False
        return mark is not None

    def _keep(self, look: _Look) -> None:
        try:
            state = self._log_state.appended_state()
            committed = self._log_state.committed_state()
            if state.keep_from_index > committed.keep_from_index:
                return  # the one before is on its way
            decision = self._decide(look, state)
            if decision.keep_from_index > state.keep_from_index:
                self._member.propose_control(Keep(decision.keep_from_index, decision.is_forced))
        except LedgerError as error:
            self.problem = f"the oldest segments stay for now: {error}"
        else:
            self.problem = ""

    def _decide(self, look: _Look, state: LogState) -> Decision:
        clock_ms = self._host.wall_clock_ms()
        policy = self._policy(look.used_ratio, clock_ms)
        # Marks are of a quorum's clocks. By this one alone what was just written could be old.
        clock_ms = min(clock_ms, self._raft.quorum_clock_ms)
        followers, bound = self._followers(), self._snapshot_bound()
        return decide(self._shape(look), policy, state, followers, clock_ms, bound)

    def _shape(self, look: _Look) -> LogShape:
        begin, end = self._store.begin, self._store.end
        return LogShape(
            begin.index + 1,
            begin.position,
            end.index + 1,
            end.position,
            tuple(each.border for each in look.borders),
        )

    def _policy(self, used_ratio: float, clock_ms: int) -> Policy:
        storage = self._member.config.storage
        hour = clock_ms // HOUR_MS % 24
        # Where none are written any more, the last mark says nothing of what came since.
        has_age = storage.deletes and self._member.config.time_marks
        return Policy(
            reserved_ms=storage.file_reserved_hours * HOUR_MS if has_age else 0,
            expires_now=hour in storage.delete_hours
            or used_ratio > storage.disk_space_ratio_to_check_expired,
            reserved_bytes=storage.retention_bytes if storage.deletes else 0,
            is_archived=storage.retention == "archived",
            is_forced=storage.deletes
            # A disk that refuses appends has to be made emptier in any case.
            and used_ratio > min(storage.disk_space_ratio_to_force_clean, storage.disk_full_ratio),
            follower_budget_bytes=self._member.config.retention_follower_budget_bytes,
            compacts=storage.compact_behind_snapshots,
        )

    def _followers(self) -> list[Follower]:
        status = self._raft.status()
        peers = {peer.replica: peer for peer in status.peers}
        for replica in list(self._installed):
            if replica in peers and peers[replica].lacks_nothing:
                del self._installed[replica]
        followers = []
        for replica in dict.fromkeys((*status.voters, *peers)):
            if replica != status.replica:
                peer = peers.get(replica)
                index = peer.water_mark if peer is not None and peer.water_mark >= 0 else None
                is_fed = peer is not None and (not peer.is_voter or replica in self._installed)
                followers.append(Follower(replica.member_id, index, is_fed))
        return followers

    # ---------------------------------------------------------------- each member

    def _drop(self, start: LogStart) -> None:
        is_above = start.point.index > self._store.begin.index
        if self._member.is_dropping or not is_above or start.point.index > self._last_border_index():
            return
        with suppress(DiskFull):  # which it names itself
            self._member.drop_before(start)

    def _tell_of_losses(self) -> None:
        state = self._log_state.committed
        if state is None or state.lost_ranges is self._lost:
            return
        known = self._lost
        self._lost = state.lost_ranges
        for lost in state.lost_ranges if known is not None else ():
            if known is not None and lost not in known:
                self._host.reader_lost(lost)
