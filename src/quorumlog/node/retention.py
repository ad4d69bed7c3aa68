"""Which segments may go, why others stay, and that they go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from quorumlog.consensus.ready import PeerStatus, Role
from quorumlog.entry import EntryKind, Replica
from quorumlog.errors import DirectoryDamaged, LeaderNotReady, LedgerError, StoreFailure
from quorumlog.figures import now
from quorumlog.log_state.control_entries import Hold, Keep
from quorumlog.log_state.log_state import (
    LogState,
    LostRange,
    Reader,
    Resets,
    StateTime,
    counted_ms,
    decode_time,
    said_ms,
)
from quorumlog.node.installing import LogDrops
from quorumlog.node.log_clock import TimeMarks
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.ports import Member
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.segments import INDEX_UNIT_BYTES
from quorumlog.store.time_marks import Mark, mark_of

# ----------------------------------------------------------------
# When all that lies before a boundary had been appended: what the first time mark after it says.
#
# The last one before it would do while marks are written all the time. Where they were switched
# off for a month and on again, what was written meanwhile would count as a month older than it is. A
# mark that comes late makes a segment younger than it is, so nothing is deleted too young.

LOOK_ENTRIES = 65536
"""Of the index, together."""


class KnownBoundary(NamedTuple):
    """A segment boundary whose state is saved."""

    point: LogPoint
    boundary: SegmentBoundary
    mark: Mark | None
    """The last one before it."""


def with_times(
    store: LedgerStore, known: list[KnownBoundary], newest: Mark | None
) -> tuple[KnownBoundary, ...]:
    """The boundaries of a log, in order, each with its time once a mark follows it. `newest`: the last
    committed one. Reads the index of segments whose time is not known yet. Runs outside the loop; raises
    StoreFailure."""
    timed, next_mark, time_ms = list(known), newest, None
    for at, each in reversed(list(enumerate(known))):
        first_index = each.boundary.first_index
        if each.boundary.time_ms is not None:
            break  # and all before it
        if next_mark is not None and next_mark.index >= first_index:
            time_ms = _first_time(store, first_index, next_mark)
        timed[at] = each._replace(boundary=each.boundary._replace(time_ms=time_ms))
        next_mark = each.mark
    return tuple(timed)


def _first_time(store: LedgerStore, first_index: int, last: Mark) -> int:
    """What the first mark from `first_index` on says; `last` is one of them."""
    try:
        for first in range(first_index, last.index, LOOK_ENTRIES):
            kinds = store.kinds(first, min(first + LOOK_ENTRIES, last.index))
            for at in np.flatnonzero(np.isin(kinds, (EntryKind.TIME, EntryKind.CLOCK))).tolist():
                for batch in store.control_batches(first + at, first + at + 1):
                    time_ms = said_ms(batch.first_header.magic, batch.body(0))
                    if time_ms is not None:
                        return time_ms
    except (LedgerError, DirectoryDamaged):
        pass  # damage: a later mark says no less
    return last.time_ms


# ----------------------------------------------------------------
# What keeps each segment of a log, and from where on nothing may go: values in, values out.
#
# A segment may go once its age or the size of what is newer is a reason (`wish`), and nothing below its
# end is held (`limits`): by a follower, a reader or an archive.

HOUR_MS = 3_600_000


class SegmentBoundary(NamedTuple):
    """Where a segment begins, and the log might one day: all entries before it are committed."""

    first_index: int
    """Of the first entry after it."""
    position: int
    time_ms: int | None
    """When all before it had been appended: the first time mark after it; None: there is none yet."""

    def counted(self, resets: Resets) -> SegmentBoundary:
        """With the time that counts after these resets of the log's clock."""
        if self.time_ms is None:
            return self
        return self._replace(time_ms=counted_ms(self.first_index - 1, self.time_ms, resets))


class LogShape(NamedTuple):
    first_index: int
    """Of the first entry that exists."""
    position: int
    """Of that entry's segment."""
    stop_index: int
    stop_position: int
    boundaries: tuple[SegmentBoundary, ...]
    """In order, all of them above `first_index`."""

    def bytes_behind(self, boundary: SegmentBoundary) -> int:
        """Bytes of data and index after the boundary."""
        units = (self.stop_index - boundary.first_index) * INDEX_UNIT_BYTES
        return self.stop_position - boundary.position + units


class Policy(NamedTuple):
    reserved_ms: int
    """0: age is no reason."""
    expires_now: bool
    """Age is one just now: it is the hour, or the disk fills up."""
    reserved_bytes: int
    """0: size is no reason."""
    is_archived: bool
    """Only archived entries."""
    is_forced: bool
    """The disk is nearly full."""
    follower_budget_bytes: int
    compacts: bool = False
    """Entries before the second newest snapshot of every machine may be deleted."""


class Follower(NamedTuple):
    name: str
    acknowledged_index: int | None
    """None: not known."""
    is_fed: bool
    """It is brought up to the others at any distance: a non-voter, or one that got the start of the log,
    and that accepts entries."""


class Limit(NamedTuple):
    """Entries from `first_index` on may not be deleted."""

    first_index: int
    reason: str


class Decision(NamedTuple):
    wish: Limit
    limits: tuple[Limit, ...]
    keep_from_index: int
    """A boundary; 0 where none lies so far down."""
    is_forced: bool
    """Readers are passed over."""

    def reasons_for(self, stop_index: int) -> tuple[str, ...]:
        """Why a segment that ends before this index stays; empty if it goes."""
        limits = (self.wish, *self.limits)
        return tuple(limit.reason for limit in limits if stop_index > limit.first_index)


def decide(
    log: LogShape,
    policy: Policy,
    state: LogState,
    followers: Sequence[Follower],
    clock_ms: int,
    snapshot_bounds: Mapping[str, int] | None = None,
) -> Decision:
    """`clock_ms`: the current time, by the clocks of the marks; `state`: of its whole log.
    `snapshot_bounds`: by machine, the entry after which it still needs the log."""
    bounds = snapshot_bounds or {}
    bound = min(bounds.values(), default=None)
    wish = _wish(log, policy, clock_ms, _compacted(policy, state, bound))
    near = _followers_within_budget(log, policy.follower_budget_bytes, followers)
    for name, index in sorted(bounds.items(), key=lambda each: each[1]):
        why = f"the second newest good snapshot of state machine {name} lies before it"
        near = [*near, Limit(index + 1, why)]
    limits = [*near, *_fed(followers), *_readers(state, Hold.READER), *_archives(state, policy)]
    plain = _floor(log, wish, limits)
    first_kept = max(state.keep_from_index, log.first_index)
    if not policy.is_forced or plain > first_kept:
        return Decision(wish, tuple(limits), plain, False)
    # One segment at a time, and the next one once the disk has got its space.
    oldest = next((b.first_index for b in log.boundaries if b.first_index > first_kept), 0)
    forced = Limit(oldest, "newer than the oldest segment, of a disk that is nearly full")
    forced_limits = [*near, *_archives(state, policy)]
    return Decision(forced, tuple(forced_limits), _floor(log, forced, forced_limits), True)


class KeptSegment(NamedTuple):
    first_index: int
    stop_index: int
    size_bytes: int
    """Of data and index."""
    time_ms: int | None
    """Time by which all of it had been appended; None: no time mark follows it."""
    reasons: tuple[str, ...]
    """Why it is still there."""


def kept_segments(
    log: LogShape, decision: Decision, keep_from_index: int, committed_keep_from_index: int
) -> list[KeptSegment]:
    """Oldest first. `keep_from_index`: of the whole log, and of its committed part."""
    segments = []
    first_index = log.first_index
    left_bytes = log.bytes_behind(SegmentBoundary(first_index, log.position, None))
    for boundary in log.boundaries:
        stop_index, behind_bytes = boundary.first_index, log.bytes_behind(boundary)
        reasons: tuple[str, ...]
        if stop_index <= committed_keep_from_index:
            reasons = ("about to be deleted",)
        elif stop_index <= keep_from_index:
            reasons = (f"keep_from_index {keep_from_index} is not committed",)
        else:
            reasons = decision.reasons_for(stop_index) or ("the next keep_from_index lets it go",)
        size_bytes = left_bytes - behind_bytes
        segments.append(KeptSegment(first_index, stop_index, size_bytes, boundary.time_ms, reasons))
        first_index, left_bytes = stop_index, behind_bytes
    segments.append(KeptSegment(first_index, log.stop_index, left_bytes, None, ("the newest",)))
    return segments


def _floor(log: LogShape, wish: Limit, limits: Sequence[Limit]) -> int:
    lowest = min([wish.first_index, *(limit.first_index for limit in limits)])
    below = [b.first_index for b in log.boundaries if b.first_index <= lowest]
    return below[-1] if below else 0


def _compacted(policy: Policy, state: LogState, snapshot_bound: int | None) -> int | None:
    """What lies up to this entry is in two snapshots of every machine; None: nothing is."""
    if not policy.compacts or snapshot_bound is None:
        return None
    return snapshot_bound if all(snapshot_bound >= each.index for each in state.machines) else None


def _wish(log: LogShape, policy: Policy, clock_ms: int, compacted: int | None) -> Limit:
    wishes = []
    if policy.compacts:
        first_index = log.first_index if compacted is None else max(compacted + 1, log.first_index)
        wishes.append(Limit(first_index, "not in two snapshots of every state machine"))
    if policy.reserved_ms:
        old = [b for b in log.boundaries if _age_ms(b, clock_ms) >= policy.reserved_ms]
        expired = old if policy.expires_now else []
        hours = f"younger than file_reserved_hours ({policy.reserved_ms // HOUR_MS})"
        wishes.append(Limit(expired[-1].first_index if expired else log.first_index, hours))
    if policy.reserved_bytes:
        beyond = [b for b in log.boundaries if log.bytes_behind(b) >= policy.reserved_bytes]
        size = f"within retention_bytes ({policy.reserved_bytes})"
        wishes.append(Limit(beyond[-1].first_index if beyond else log.first_index, size))
    if not wishes:
        return Limit(log.first_index, "retention is off")
    highest = max(wish.first_index for wish in wishes)
    return Limit(highest, " and ".join(wish.reason for wish in wishes))


def _age_ms(boundary: SegmentBoundary, clock_ms: int) -> int:
    return 0 if boundary.time_ms is None else max(0, clock_ms - boundary.time_ms)


def _followers_within_budget(
    log: LogShape, budget_bytes: int, followers: Sequence[Follower]
) -> list[Limit]:
    """Where a follower stands that is not known may be anywhere within its budget."""
    budget = [b for b in log.boundaries if log.stop_position - b.position >= budget_bytes]
    first_within = budget[-1].first_index if budget else log.first_index
    limits = []
    for follower in followers:
        if follower.is_fed:
            continue
        if follower.acknowledged_index is None:
            limits.append(Limit(first_within, f"follower {follower.name}, within its budget"))
        elif follower.acknowledged_index + 1 >= first_within:
            limits.append(Limit(follower.acknowledged_index + 1, f"follower {follower.name}"))
    return limits


def _fed(followers: Sequence[Follower]) -> list[Limit]:
    fed = [each for each in followers if each.is_fed]
    return [
        Limit(
            0 if each.acknowledged_index is None else each.acknowledged_index + 1,
            f"member {each.name}, which is being fed",
        )
        for each in fed
    ]


def _readers(state: LogState, hold: Hold) -> list[Limit]:
    kind = "archive" if hold is Hold.ARCHIVE else "reader"
    held = [reader for reader in state.readers if reader.hold is hold]
    return [Limit(reader.position, f"{kind} {reader.name}") for reader in held]


def _archives(state: LogState, policy: Policy) -> list[Limit]:
    archives = _readers(state, Hold.ARCHIVE)
    if policy.is_archived and not archives:
        return [Limit(0, "retention = archived, and no archive is known")]
    if policy.is_archived and not archives_with_chain(state):
        why = "retention = archived, and no archive has recorded the chain at its end"
        archives.append(Limit(0, why))
    return archives


def archives_with_chain(state: LogState) -> list[Reader]:
    """The archives that a member can compare with its own log."""
    return [each for each in state.readers if each.hold is Hold.ARCHIVE and each.last_chain is not None]


# ---------------------------------------------------------------- Retention
# The oldest segments of the log go.
#
#     once a second       boundaries, their times and the disk are looked at, beside the loop
#     the leader          writes KEEP: from which index on everything stays
#     once committed      each member drops what lies below, up to a boundary of its own; with
#                         `retention = archived` after it has compared the archive's chain with its own
#
# What may go is decided in the log and nowhere else: told in a heartbeat, it could pass a hold that
# commits between the telling and the deleting.

LOOK_INTERVAL_MS = 1000
FED_PATIENCE_MS = 60_000
"""One that is being fed and takes nothing for so long is waited for within its budget only."""


class _RetentionLook(NamedTuple):
    boundaries: tuple[KnownBoundary, ...]
    truncations: int
    used_ratio: float
    start: LogStart | None
    """Where the log may begin, by committed entries."""
    unproven: str
    """Why entries below are not known to be archived, in a sentence; empty if it is, or need not be."""


class WhyKept(NamedTuple):
    segments: tuple[KeptSegment, ...]
    keep_from_index: int
    """Committed."""
    used_ratio: float
    """Of the disk."""


class Retention:
    def __init__(
        self,
        member: Member,
        log_state: LogStateKeeper,
        drops: LogDrops,
        now_ms: float,
        snapshot_bounds: Callable[[], dict[str, int]],
        time_marks: TimeMarks,
        installed: set[Replica],
    ) -> None:
        """`snapshot_bounds`: of `StateMachineCaller`; `installed`: of `InstallSender`."""
        self._member = member
        self._raft, self._store, self._host = member.raft, member.store, member.host
        self._log_state = log_state
        self._drops = drops
        self._snapshot_bounds = snapshot_bounds
        self._time_marks = time_marks
        self._now_ms = now_ms
        self._next_look_ms = now_ms + LOOK_INTERVAL_MS
        self._looked_below = 0
        """`keep_from_index` at the newest look: once a higher one is committed, the next is due at once,
        or the disk would hold a second of appends more."""
        self._is_looking = False
        self._known: tuple[KnownBoundary, ...] = ()
        """As of the newest look."""
        self._known_truncations = -1
        self._refusal = self._unproven = ""
        """Why the leader does not let go, and why this member deletes nothing; in a sentence each."""
        self._installed = installed
        """Members that got the start of this log and have not caught up since."""
        self._lost: tuple[LostRange, ...] | None = None
        """What readers had lost when it was last looked."""

    @property
    def problem(self) -> str:
        """Why nothing is deleted although it may be, in a sentence."""
        return self._unproven or self._refusal

    # ---------------------------------------------------------------- looking

    @property
    def _is_wanted(self) -> bool:
        storage = self._member.config.storage
        if storage.deletes and self._raft.role is Role.LEADER:
            return True
        return storage.retention != "off" and self._droppable_below() > self._store.begin.index + 1

    def _droppable_below(self) -> int:
        """By what is committed, and what the machines of this member still need; 0: nothing."""
        state = self._log_state.committed
        bound = min(self._snapshot_bounds().values(), default=None)
        keep_from = 0 if state is None else state.keep_from_index
        return keep_from if bound is None else min(keep_from, bound + 1)

    def next_wakeup_ms(self) -> float:
        return math.inf if self._is_looking else self._next_look_ms

    def tick(self, now_ms: float) -> None:
        """Compute what may be deleted once an interval, and after each deletion of the leader."""
        self._now_ms = now_ms
        state = self._log_state.committed
        keep_from = 0 if state is None else state.keep_from_index
        if self._is_looking or (now_ms < self._next_look_ms and keep_from <= self._looked_below):
            return
        self._next_look_ms = now_ms + LOOK_INTERVAL_MS
        self._looked_below = keep_from
        self._tell_of_losses()
        if not self._is_wanted:
            return
        self._is_looking = True
        self._host.read_later(self._look(), self._looked)

    def _last_boundary_index(self) -> int:
        """Of the entry before a boundary at which this log may begin: the next one is committed, too,
        and on this disk."""
        return self._member.durable_committed_index - 1

    def _look(self) -> Callable[[], _RetentionLook]:
        """What to do beside the loop. It raises StoreFailure."""
        keep_from, last_index = self._droppable_below(), self._last_boundary_index()
        committed = self._log_state.committed
        newest = None if committed is None else mark_of(committed)
        is_archived = self._member.config.storage.retention == "archived"

        def look() -> _RetentionLook:
            boundaries, truncations = self._store.boundaries, self._store.truncations
            known = list(self._known) if truncations == self._known_truncations else []
            for point in boundaries.above(known[-1].point.index if known else -1):
                if point.index > last_index:
                    break
                start = boundaries.saved_at(point)
                if start is None:
                    continue  # not yet, or damage has kept it from being saved
                at_boundary = decode_time(start.record)
                mark = mark_of(at_boundary) if isinstance(at_boundary, StateTime) else None
                known.append(
                    KnownBoundary(point, SegmentBoundary(point.index + 1, point.position, None), mark)
                )
            below = [each.point for each in known if each.boundary.first_index <= keep_from]
            start = boundaries.saved_at(below[-1]) if below else None
            timed = with_times(self._store, known, newest)
            unproven = ""
            if is_archived and start is not None and start.point.index > self._store.begin.index:
                assert committed is not None, "some of its entries may go"
                unproven = not_archived(self._store, committed)
            return _RetentionLook(
                timed, truncations, self._member.directory.usage().used_ratio, start, unproven
            )

        return look

    def _looked(self, look: _RetentionLook | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        if isinstance(look, StoreFailure | LedgerError):
            raise look
        if look.truncations != self._store.truncations:
            return  # what was found may be gone
        self._known, self._known_truncations = look.boundaries, look.truncations
        self._unproven = look.unproven
        if look.start is not None and not look.unproven:
            self._drop(look.start)
        elif self._member.config.storage.deletes and self._raft.role is Role.LEADER:
            is_marked = self._mark(look)
            if not is_marked:
                self._keep(look)

    def explain(self, done: Callable[[WhyKept | LedgerError], None]) -> None:
        """`done` gets the reason that keeps each segment, as known to this leader, or a refusal."""

        def looked(look: _RetentionLook | StoreFailure | LedgerError) -> None:
            if isinstance(look, StoreFailure):
                raise look
            done(look if isinstance(look, LedgerError) else self._explained(look))

        self._host.read_later(self._look(), looked)

    def _explained(self, look: _RetentionLook) -> WhyKept | LedgerError:
        if look.truncations != self._store.truncations:
            return LeaderNotReady("the log was cut meanwhile", retry_after_ms=LOOK_INTERVAL_MS)
        try:
            state = self._log_state.appended_state()
            committed = self._log_state.committed_state()
        except LedgerError as error:
            return error
        kept_from = (state.keep_from_index, committed.keep_from_index)
        segments = kept_segments(self._shape(look, state), self._decide(look, state), *kept_from)
        return WhyKept(tuple(segments), committed.keep_from_index, look.used_ratio)

    # ---------------------------------------------------------------- the leader

    def _mark(self, look: _RetentionLook) -> bool:
        """A segment that is full gets its time even where nobody appends any more."""
        config = self._member.config
        if not (look.boundaries and config.time_marks and config.storage.file_reserved_hours):
            return False
        boundary = look.boundaries[-1].boundary
        try:
            state = self._log_state.appended_state()
            is_marked = boundary.time_ms is not None or state.time_index >= boundary.first_index
            mark = None if is_marked else self._time_marks.due(self._now_ms)
            if mark is not None:
                self._member.propose_control(mark)
        except LedgerError:
            return False
        return mark is not None

    def _keep(self, look: _RetentionLook) -> None:
        try:
            state = self._log_state.appended_state()
            committed = self._log_state.committed_state()
            if state.keep_from_index > committed.keep_from_index:
                return  # the one before is on its way
            decision = self._decide(look, state)
            if decision.keep_from_index > state.keep_from_index:
                self._member.propose_control(Keep(decision.keep_from_index, decision.is_forced))
        except LedgerError as error:
            self._refusal = f"the oldest segments stay for now: {error}"
        else:
            self._refusal = ""

    def _decide(self, look: _RetentionLook, state: LogState) -> Decision:
        clock_ms = self._host.wall_clock_ms()
        policy = self._policy(look.used_ratio, clock_ms)
        # By this clock alone what was just written could be old, and by all of them where they jump.
        clock_ms = min(clock_ms, self._time_marks.log_clock_ms)
        followers, bounds = self._followers(), self._snapshot_bounds()
        return decide(self._shape(look, state), policy, state, followers, clock_ms, bounds)

    def _shape(self, look: _RetentionLook, state: LogState) -> LogShape:
        begin, end = self._store.begin, self._store.end
        return LogShape(
            begin.index + 1,
            begin.position,
            end.index + 1,
            end.position,
            tuple(each.boundary.counted(state.clock_resets) for each in look.boundaries),
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
            # Disks that refuse appends have to be made emptier in any case.
            and (
                used_ratio > min(storage.disk_space_ratio_to_force_clean, storage.disk_full_ratio)
                or bool(self._raft.replication.too_many_full)
            ),
            follower_budget_bytes=self._member.config.retention_follower_budget_bytes,
            compacts=storage.compact_behind_snapshots,
        )

    def _followers(self) -> list[Follower]:
        status = self._raft.status()
        peers = {peer.replica: peer for peer in status.peers}
        caught_up = {replica for replica, peer in peers.items() if peer.lacks_nothing}
        self._installed -= caught_up
        followers = []
        for replica in dict.fromkeys((*status.voters, *peers)):
            if replica != status.replica:
                peer = peers.get(replica)
                index = peer.match_index if peer is not None and peer.match_index >= 0 else None
                is_fed = peer is not None and self._is_fed(peer)
                followers.append(Follower(replica.member_id, index, is_fed))
        return followers

    def _is_fed(self, peer: PeerStatus) -> bool:
        """And takes what it is given: a full disk may stay full, and the log grow for it for ever."""
        stalled_ms = peer.stalled_since_ms
        is_patient = stalled_ms is None or self._now_ms - stalled_ms < FED_PATIENCE_MS
        is_new = not peer.is_voter or peer.replica in self._installed
        return is_new and is_patient and not peer.lacks_space

    # ---------------------------------------------------------------- each member

    def _drop(self, start: LogStart) -> None:
        if self._store.begin.index < start.point.index <= self._last_boundary_index():
            self._drops.begin(start)

    def _tell_of_losses(self) -> None:
        state = self._log_state.committed
        if state is None or state.lost_ranges is self._lost:
            return
        known = self._lost
        self._lost = state.lost_ranges
        for lost in state.lost_ranges if known is not None else ():
            if known is not None and lost not in known:
                self._host.reader_lost(lost)


def not_archived(store: LedgerStore, state: LogState) -> str:
    """Why the archived entries, by the committed `state`, are not known to be of this log; empty if they
    are. Chains that agree at an entry agree below it. Runs outside the loop; raises StoreFailure."""
    archives = archives_with_chain(state)
    if not archives:
        return "nothing is deleted (retention = archived): no archive has recorded the chain at its end"
    for archive in archives:
        index = archive.position - 1
        try:
            own = store.point_on_disk(index).chain
        except (DirectoryDamaged, LedgerError) as error:
            return f"nothing is deleted, since archive {archive.name} cannot be compared: {error}"
        if own != archive.last_chain:
            chains = f"entry {index} has chain_crc {own:08x} here, and {archive.last_chain:08x} there"
            return (
                f"nothing is deleted, since archive {archive.name} is not of this"
                f" log{now(chains)}: quorumlog pipeline audit --archive finds where they differ"
            )
    return ""
