"""How far a quorum's clocks are believed, in virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.node.log_clock import AGREES_MS, HELD_MS, MOST_AHEAD_MS, MOST_SEEN, LogClock

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
T0 = 1_700_000_000_000


def believes(clock: LogClock, clock_ms: int, now_ms: float) -> bool:
    clock.look(clock_ms, now_ms)
    return clock.believes(clock_ms, now_ms)


def test_a_log_without_a_mark_believes_any_time() -> None:
    clock = LogClock()
    assert believes(clock, T0, 0)
    assert clock.time_ms(T0, 0) == T0


def test_behind_a_mark_that_it_saw_written_a_day_more_than_has_gone_by_is_the_most() -> None:
    clock = LogClock()
    clock.see(5, T0, 1000, is_live=True)
    for gone_ms in (0, HOUR_MS, YEAR_MS):
        most_ms = T0 + gone_ms + MOST_AHEAD_MS
        assert believes(clock, most_ms, 1000 + gone_ms)
        assert not believes(clock, most_ms + 1, 1000 + gone_ms)
        assert not clock.is_waiting


def test_what_is_held_for_however_long_is_not_believed_behind_such_a_mark() -> None:
    clock = LogClock()
    clock.see(5, T0, 0, is_live=True)
    for minute in range(1000):
        assert not believes(clock, T0 + YEAR_MS + minute * 60_000, minute * 60_000)


def test_meanwhile_ages_count_by_the_monotonic_clock() -> None:
    clock = LogClock()
    clock.see(5, T0, 0, is_live=True)
    clock.look(T0 + YEAR_MS, HOUR_MS)
    assert clock.time_ms(T0 + YEAR_MS, HOUR_MS) == T0 + HOUR_MS


def test_behind_a_mark_that_it_found_a_time_is_believed_once_it_has_been_held_for_ten_minutes() -> None:
    """A group that was off for a month, or restored."""
    clock = LogClock()
    clock.see(5, T0, 0, is_live=False)
    for gone_ms in range(0, HELD_MS, 30_000):
        assert not believes(clock, T0 + YEAR_MS + gone_ms, gone_ms)
        assert clock.is_waiting
        assert clock.time_ms(T0 + YEAR_MS + gone_ms, gone_ms) == -1
    assert believes(clock, T0 + YEAR_MS + HELD_MS, HELD_MS)
    assert clock.time_ms(T0 + YEAR_MS + HELD_MS, HELD_MS) == T0 + YEAR_MS + HELD_MS
    clock.see(7, T0 + YEAR_MS + HELD_MS, HELD_MS, is_live=True)
    assert not believes(clock, T0 + 3 * YEAR_MS, 3 * HELD_MS), "from the first mark on it knows"


def test_it_is_held_only_while_it_goes_with_the_monotonic_clock() -> None:
    clock = LogClock()
    clock.see(5, T0, 0, is_live=False)
    far_ms = T0 + YEAR_MS
    assert not believes(clock, far_ms, 0)
    assert believes(clock, T0 + 1000, HELD_MS / 2), "right for a moment"
    assert not believes(clock, far_ms + HELD_MS, HELD_MS)
    assert not believes(clock, far_ms + HELD_MS + HELD_MS // 2 + AGREES_MS + 1, 1.5 * HELD_MS)
    assert not believes(clock, far_ms + 2 * HELD_MS, 2 * HELD_MS)
    assert believes(clock, far_ms + 3 * HELD_MS, 3 * HELD_MS)


def test_who_does_not_lead_holds_nothing() -> None:
    clock = LogClock()
    clock.see(5, T0, 0, is_live=False)
    assert not believes(clock, T0 + YEAR_MS, 0)
    clock.look(-1, HELD_MS / 2)
    assert not believes(clock, T0 + YEAR_MS + HELD_MS, HELD_MS)


def test_a_mark_that_is_cut_off_leaves_what_was_known_before_it() -> None:
    clock = LogClock()
    clock.see(5, T0, 0, is_live=True)
    clock.see(9, T0 + 2 * HOUR_MS, 30 * HOUR_MS, is_live=True)
    clock.see(5, T0, 31 * HOUR_MS, is_live=False)
    assert believes(clock, T0 + 31 * HOUR_MS + MOST_AHEAD_MS, 31 * HOUR_MS)


def test_few_marks_are_remembered() -> None:
    clock = LogClock()
    for index in range(1000):
        clock.see(index, T0 + index, 0, is_live=True)
    assert len(clock._seen) == MOST_SEEN


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100 * HOUR_MS),
            st.sampled_from([0, 0, 0, HOUR_MS, -HOUR_MS, 10 * YEAR_MS, 10 * YEAR_MS + 1]),
        ),
        max_size=40,
    )
)
def test_clocks_that_are_years_ahead_for_a_while_age_nothing(steps: list[tuple[int, int]]) -> None:
    """Whatever they said, once they are right again marks go on, and no time was above the true one by
    more than what is taken for a correction."""
    clock, now_ms, index = LogClock(), 0, 0
    clock.see(index, T0, now_ms, is_live=True)
    last_ms = T0
    for gone_ms, ahead_ms in steps:
        now_ms += gone_ms
        clock_ms = T0 + now_ms + ahead_ms
        clock.look(clock_ms, now_ms)
        assert clock.time_ms(clock_ms, now_ms) <= T0 + now_ms + HOUR_MS
        if clock.believes(clock_ms, now_ms) and clock_ms > last_ms:
            index, last_ms = index + 1, clock_ms
            clock.see(index, clock_ms, now_ms, is_live=True)
        assert last_ms <= T0 + now_ms + HOUR_MS
    now_ms += 2 * HOUR_MS
    assert believes(clock, T0 + now_ms, now_ms)
    assert T0 + now_ms > last_ms
