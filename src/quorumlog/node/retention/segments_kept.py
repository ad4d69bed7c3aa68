"""What keeps each segment of a log, and from where on nothing may go: values in, values out.

A segment may go once its age or the size of what is newer is a reason (`wish`), and nothing below its
end is held (`limits`): by a follower, a reader or an archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quorumlog.log_state.control_entries import Hold
from quorumlog.log_state.log_state import LogState, Reader, Resets, counted_ms
from quorumlog.store.segments import INDEX_UNIT_BYTES

HOUR_MS = 3_600_000


class Border(NamedTuple):
    """Where a segment begins, and the log might one day: what lies before it is committed."""

    first_index: int
    """Of the first entry behind it."""
    position: int
    time_ms: int | None
    """When all before it had been appended: the first time mark behind it; None: there is none yet."""

    def counted(self, resets: Resets) -> Border:
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
    borders: tuple[Border, ...]
    """In order, all of them above `first_index`."""

    def bytes_behind(self, border: Border) -> int:
        """Of data and index."""
        units = (self.stop_index - border.first_index) * INDEX_UNIT_BYTES
        return self.stop_position - border.position + units


class Policy(NamedTuple):
    reserved_ms: int
    """0: age is no reason."""
    expires_now: bool
    """Age is one just now: it is the hour, or the disk fills up."""
    reserved_bytes: int
    """0: size is no reason."""
    is_archived: bool
    """Only what an archive has taken."""
    is_forced: bool
    """The disk is nearly full."""
    follower_budget_bytes: int
    compacts: bool = False
    """What lies before the second newest snapshot of every machine is a reason."""


class Follower(NamedTuple):
    name: str
    acknowledged_index: int | None
    """None: not known."""
    is_fed: bool
    """It is brought up to where the others are, however far that is: one that does not vote, or that
    got the start of the log, and that takes what it is given."""


class Limit(NamedTuple):
    """Nothing from `first_index` on may go."""

    first_index: int
    reason: str


class Decision(NamedTuple):
    wish: Limit
    limits: tuple[Limit, ...]
    keep_from_index: int
    """A border; 0 where none lies so far down."""
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
    """`clock_ms`: what time it is, by the clocks that the marks are of; `state`: of its whole log.
    `snapshot_bounds`: its machines, by name, need what follows these entries."""
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
    oldest = next((b.first_index for b in log.borders if b.first_index > first_kept), 0)
    forced = Limit(oldest, "newer than the oldest segment, of a disk that is nearly full")
    forced_limits = [*near, *_archives(state, policy)]
    return Decision(forced, tuple(forced_limits), _floor(log, forced, forced_limits), True)


class KeptSegment(NamedTuple):
    first_index: int
    stop_index: int
    size_bytes: int
    """Of data and index."""
    time_ms: int | None
    """When all of it had been appended; None: no time mark stands behind it."""
    reasons: tuple[str, ...]
    """Why it is still there."""


def kept_segments(
    log: LogShape, decision: Decision, keep_from_index: int, committed_keep_from_index: int
) -> list[KeptSegment]:
    """Oldest first. `keep_from_index`: of the whole log, and of what is committed of it."""
    segments = []
    first_index, left_bytes = (
        log.first_index,
        log.bytes_behind(Border(log.first_index, log.position, None)),
    )
    for border in log.borders:
        stop_index, behind_bytes = border.first_index, log.bytes_behind(border)
        reasons: tuple[str, ...]
        if stop_index <= committed_keep_from_index:
            reasons = ("about to be deleted",)
        elif stop_index <= keep_from_index:
            reasons = (f"keep_from_index {keep_from_index} is not committed",)
        else:
            reasons = decision.reasons_for(stop_index) or ("the next keep_from_index lets it go",)
        size_bytes = left_bytes - behind_bytes
        segments.append(KeptSegment(first_index, stop_index, size_bytes, border.time_ms, reasons))
        first_index, left_bytes = stop_index, behind_bytes
    segments.append(KeptSegment(first_index, log.stop_index, left_bytes, None, ("the newest",)))
    return segments


def _floor(log: LogShape, wish: Limit, limits: Sequence[Limit]) -> int:
    lowest = min([wish.first_index, *(limit.first_index for limit in limits)])
    below = [b.first_index for b in log.borders if b.first_index <= lowest]
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
        expired = [
            b for b in log.borders if policy.expires_now and _age_ms(b, clock_ms) >= policy.reserved_ms
        ]
        hours = f"younger than file_reserved_hours ({policy.reserved_ms // HOUR_MS})"
        wishes.append(Limit(expired[-1].first_index if expired else log.first_index, hours))
    if policy.reserved_bytes:
        beyond = [b for b in log.borders if log.bytes_behind(b) >= policy.reserved_bytes]
        size = f"within retention_bytes ({policy.reserved_bytes})"
        wishes.append(Limit(beyond[-1].first_index if beyond else log.first_index, size))
    if not wishes:
        return Limit(log.first_index, "retention is off")
    highest = max(wish.first_index for wish in wishes)
    return Limit(highest, " and ".join(wish.reason for wish in wishes))


def _age_ms(border: Border, clock_ms: int) -> int:
    return 0 if border.time_ms is None else max(0, clock_ms - border.time_ms)


def _followers_within_budget(
    log: LogShape, budget_bytes: int, followers: Sequence[Follower]
) -> list[Limit]:
    """Where a follower stands that is not known may be anywhere within its budget."""
    budget = [b for b in log.borders if log.stop_position - b.position >= budget_bytes]
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
        archives.append(Limit(0, "retention = archived, and no archive says with which chain it ends"))
    return archives


def archives_with_chain(state: LogState) -> list[Reader]:
    """The archives that a member can compare with its own log."""
    return [each for each in state.readers if each.hold is Hold.ARCHIVE and each.last_chain is not None]
