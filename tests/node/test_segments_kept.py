"""From where on nothing may go, as a table of what holds what."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.log_state.control_entries import Hold
from quorumlog.log_state.log_state import EMPTY, LogState, Machine, Reader, Reset
from quorumlog.node.retention import (
    HOUR_MS,
    Decision,
    Follower,
    LogShape,
    Policy,
    SegmentBoundary,
    decide,
)

SEGMENT_BYTES, ENTRIES = 1000, 10
LOG = LogShape(
    0,
    0,
    57,
    5700,
    tuple(
        SegmentBoundary(n * ENTRIES, n * SEGMENT_BYTES, n * HOUR_MS if n > 1 else None)
        for n in range(1, 6)
    ),
)
"""Six segments of ten entries, the last not full. Segment n was full at n o'clock, the first one before
there were marks."""
NOTHING = Policy(0, True, 0, False, False, 2000)
BYTES = NOTHING._replace(reserved_bytes=1)
AGE = NOTHING._replace(reserved_ms=2 * HOUR_MS)


def state_of(*readers: Reader, keep_from: int = 0) -> LogState:
    return msgspec.structs.replace(EMPTY, readers=readers, keep_from_index=keep_from)


def reader(position: int, hold: Hold) -> Reader:
    return Reader("r", position, hold, 0)


def decided(
    policy: Policy, *followers: Follower, state: LogState = EMPTY, clock_ms: int = 6 * HOUR_MS
) -> Decision:
    return decide(LOG, policy, state, followers, clock_ms)


@pytest.mark.parametrize(
    ("policy", "keep_from"),
    [
        (NOTHING, 0),
        (AGE, 40),
        (AGE._replace(expires_now=False), 0),
        (BYTES, 50),
        (NOTHING._replace(reserved_bytes=700 + 7 * 32), 50),
        (NOTHING._replace(reserved_bytes=700 + 7 * 32 + 1), 40),
        (NOTHING._replace(reserved_bytes=10**9), 0),
        (AGE._replace(reserved_bytes=10**9), 40),
        (AGE._replace(reserved_bytes=700), 50),
        (AGE._replace(is_archived=True), 0),
    ],
)
def test_age_or_size_is_a_reason(policy: Policy, keep_from: int) -> None:
    assert decided(policy).keep_from_index == keep_from


def test_an_archive_counts_once_it_says_with_which_chain_it_ends() -> None:
    policy = AGE._replace(is_archived=True)
    silent = Reader("tape", 35, Hold.ARCHIVE, 0)
    said = msgspec.structs.replace(silent, last_chain=7)
    assert decided(policy, state=state_of(silent)).keep_from_index == 0
    assert decided(policy, state=state_of(said)).keep_from_index == 30
    assert decided(AGE, state=state_of(silent)).keep_from_index == 30


def test_nothing_is_said_of_what_this_log_does_not_hold() -> None:
    """It begins above what the log lets go, as one that was installed or restored may."""
    later = LOG._replace(first_index=25, position=2000, boundaries=LOG.boundaries[2:])
    assert decide(later, AGE, EMPTY, (), 0).keep_from_index == 0
    held = state_of(reader(3, Hold.READER))
    assert decide(later, BYTES, held, (), 6 * HOUR_MS).keep_from_index == 0
    assert decide(later, BYTES, EMPTY, (), 6 * HOUR_MS).keep_from_index == 50


def test_a_clock_that_is_behind_makes_nothing_older() -> None:
    assert decided(AGE, clock_ms=-HOUR_MS).keep_from_index == 0
    assert decided(AGE, clock_ms=10**15).keep_from_index == 50


@pytest.mark.parametrize(
    ("follower", "keep_from"),
    [
        (Follower("n1", 56, False), 50),
        (Follower("n1", 48, False), 40),  # entry 49 is what it wants next
        (Follower("n1", 49, False), 50),
        (Follower("n1", 29, False), 30),
        (Follower("n1", 12, False), 50),  # lacks more than its budget of 2000
        (Follower("n1", -1, False), 50),
        (Follower("n1", None, False), 30),  # anywhere within its budget
        (Follower("n1", 12, True), 10),
        (Follower("n1", None, True), 0),
    ],
)
def test_a_follower_within_its_budget_is_waited_for(follower: Follower, keep_from: int) -> None:
    assert decided(BYTES, follower).keep_from_index == keep_from


@pytest.mark.parametrize(("bound", "keep_from"), [(None, 0), (3, 0), (25, 20), (39, 40)])
def test_what_is_in_two_snapshots_of_every_machine_may_go(bound: int | None, keep_from: int) -> None:
    """The second one was bound at entry 12: a bound below that says that it has no two of them."""
    machines = (Machine("a", 1, 1, 2), Machine("b", 2, 1, 12))
    state = msgspec.structs.replace(EMPTY, machines=machines)
    policy = NOTHING._replace(compacts=True)
    bounds = None if bound is None else {"a": 45, "b": bound}
    decision = decide(LOG, policy, state, (), 0, bounds)
    assert decision.keep_from_index == keep_from
    assert "not in two snapshots of every state machine" in decision.reasons_for(60)


def test_what_state_machines_need_stays_also_on_a_full_disk() -> None:
    for policy in (BYTES, BYTES._replace(is_forced=True)):
        assert decide(LOG, policy, EMPTY, (), 0, {"a": 24}).keep_from_index == 20
        decision = decide(LOG, policy, EMPTY, (), 0, {"a": 24, "b": -1})
        assert decision.keep_from_index == 0
        assert [why for why in decision.reasons_for(20) if "snapshot" in why] == [
            "the second newest good snapshot of state machine b lies before it"
        ]


@pytest.mark.parametrize("hold", Hold)
def test_readers_hold_what_they_have_not_read_if_they_want_it_held(hold: Hold) -> None:
    keep_from = decided(BYTES, state=state_of(reader(25, hold))).keep_from_index
    assert keep_from == (50 if hold is Hold.NONE else 20)


def test_a_full_disk_passes_readers_one_segment_at_a_time_and_neither_archive_nor_follower() -> None:
    forced = BYTES._replace(is_forced=True)
    held = state_of(reader(0, Hold.READER))
    decision = decided(forced, state=held)
    assert (decision.keep_from_index, decision.is_forced) == (10, True)
    again = decided(forced, state=state_of(reader(10, Hold.READER), keep_from=10))
    assert (again.keep_from_index, again.is_forced) == (20, True)
    assert decided(forced, state=state_of(reader(9, Hold.ARCHIVE))).keep_from_index == 0
    assert decided(forced, Follower("n1", 5, False), state=held).keep_from_index == 10
    assert (
        decided(forced._replace(follower_budget_bytes=10**6), Follower("n1", 5, False)).keep_from_index
        == 0
    )
    young = NOTHING._replace(reserved_ms=100 * HOUR_MS, is_forced=True)
    assert decided(young).keep_from_index == 10
    plain = decided(forced)
    assert (plain.keep_from_index, plain.is_forced) == (50, False)


POLICIES = st.builds(
    Policy,
    st.sampled_from([0, HOUR_MS, 3 * HOUR_MS]),
    st.booleans(),
    st.sampled_from([0, 1, 2500]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1500, 10**6]),
)
FOLLOWERS = st.lists(
    st.builds(Follower, st.just("n"), st.none() | st.integers(-1, 56), st.booleans()), max_size=3
)
STATES = st.builds(
    lambda at, hold, keep: state_of(reader(at, hold), keep_from=keep),
    st.integers(0, 57),
    st.sampled_from(Hold),
    st.integers(0, 40),
)


@given(POLICIES, FOLLOWERS, STATES)
def test_whatever_is_configured_it_ends_at_a_boundary_and_passes_nobody_who_must_not_be(
    policy: Policy, followers: list[Follower], state: LogState
) -> None:
    decision = decided(policy, *followers, state=state)
    keep_from = decision.keep_from_index
    assert keep_from in {0, *(boundary.first_index for boundary in LOG.boundaries)}
    for each in followers:
        acknowledged = each.acknowledged_index
        if not each.is_fed and acknowledged is not None:
            lacks_bytes = 100 * (LOG.stop_index - acknowledged - 1)
            assert keep_from <= acknowledged + 1 or lacks_bytes > policy.follower_budget_bytes
        if each.is_fed and not decision.is_forced:
            assert keep_from <= (-1 if acknowledged is None else acknowledged) + 1
    (held,) = state.readers
    if held.hold is Hold.ARCHIVE or (held.hold is Hold.READER and not decision.is_forced):
        assert keep_from <= held.position
    assert not decision.is_forced or policy.is_forced


@given(POLICIES, FOLLOWERS, STATES)
def test_every_segment_that_stays_has_a_reason_and_one_that_goes_has_none(
    policy: Policy, followers: list[Follower], state: LogState
) -> None:
    decision = decided(policy, *followers, state=state)
    stops = [boundary.first_index for boundary in LOG.boundaries]
    for stop_index in stops:
        assert bool(decision.reasons_for(stop_index)) == (stop_index > decision.keep_from_index)


def test_a_boundary_counts_as_no_later_than_a_reset_of_the_clock_behind_it() -> None:
    ahead = SegmentBoundary(20, 2000, 900 * HOUR_MS)
    assert ahead.counted((Reset(19, HOUR_MS),)) == ahead
    assert ahead.counted((Reset(20, HOUR_MS),)).time_ms == HOUR_MS
    assert ahead.counted((Reset(50, 7 * HOUR_MS), Reset(60, 5 * HOUR_MS))).time_ms == 5 * HOUR_MS
    assert SegmentBoundary(20, 2000, None).counted((Reset(50, HOUR_MS),)).time_ms is None
