"""At which time an entry counts: never too old by the true time, and never falling along the log."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import (
    MOST_RUNS,
    ClockReset,
    ControlEntry,
    TimeMark,
    encode_body,
    kind_of,
)
from quorumlog.log_state.log_state import EMPTY, LogState, Reset, advanced, counted_ms, said_ms

INTERVAL_MS = 1000


class Appended(NamedTuple):
    true_ms: int
    body: TimeMark | ClockReset | None
    """None: data."""
    mark_ms: int
    """The last one at or in front of it, as the fold has it."""


def written(steps: list[tuple[int, int, bool]]) -> tuple[list[Appended], LogState]:
    """(true time that passes, how far the clocks are ahead, whether the clock is reset) each. Clocks are
    right when it is reset, for that is what a reset is for."""
    true_ms, entries, state = 1, [], EMPTY

    def append(body: TimeMark | ClockReset | None) -> None:
        nonlocal state
        if body is not None:
            entry = ControlEntry(len(entries), kind_of(body), body)
            after = advanced(state, entry)
            assert isinstance(after, LogState)
            state = after
        entries.append(Appended(true_ms, body, -1 if state.time_ms is None else state.time_ms))

    for passes_ms, ahead_ms, is_reset in steps:
        true_ms += passes_ms
        clock_ms = true_ms if is_reset else true_ms + ahead_ms
        if is_reset:
            append(ClockReset(clock_ms))
        elif state.time_ms is None or clock_ms >= state.time_ms + INTERVAL_MS:
            append(TimeMark(clock_ms))
        append(None)
    return entries, state


STEPS = st.lists(
    st.tuples(st.integers(0, 5000), st.just(0) | st.integers(0, 10**12), st.booleans()), max_size=60
)


@given(STEPS)
def test_no_entry_counts_as_older_than_it_is_and_times_never_fall(
    steps: list[tuple[int, int, bool]],
) -> None:
    entries, state = written(steps)
    counted = [
        counted_ms(index, entry.mark_ms, state.clock_resets) for index, entry in enumerate(entries)
    ]
    for entry, time_ms in zip(entries, counted, strict=True):
        assert time_ms > entry.true_ms - INTERVAL_MS
    assert all(before <= after for before, after in pairwise(counted))


@given(STEPS)
def test_a_reader_of_all_entries_finds_the_same(steps: list[tuple[int, int, bool]]) -> None:
    entries, state = written(steps)
    times = AppendTimes(-1, state.clock_resets)
    for index, entry in enumerate(entries):
        if entry.body is not None:
            batch = EntryBatch.control(kind_of(entry.body), encode_body(entry.body))
        else:
            batch = EntryBatch.control(EntryKind.NOOP)
        batch.stamp(index, 1, [0], 0)
        expected = counted_ms(index, entry.mark_ms, state.clock_resets)
        assert times.runs(batch)[-1][1] == expected


def test_within_a_run_the_mark_counts_and_the_next_reset_bounds_it() -> None:
    resets = (Reset(10, 500), Reset(20, 700))
    assert counted_ms(5, 400, resets) == 400
    assert counted_ms(5, 900, resets) == 500
    assert counted_ms(10, 500, resets) == 500
    assert counted_ms(15, 900, resets) == 700
    assert counted_ms(25, 900, resets) == 900
    assert counted_ms(5, -1, resets) == -1


def test_a_later_reset_to_less_bounds_all_in_front_of_it() -> None:
    assert counted_ms(5, 900, (Reset(10, 800), Reset(20, 300))) == 300
    assert counted_ms(10, 800, (Reset(10, 800), Reset(20, 300))) == 300


def test_in_front_of_sixteen_runs_all_counts_as_young_as_the_oldest() -> None:
    resets = tuple(Reset(10 * number, 1000 * number) for number in range(1, MOST_RUNS + 1))
    assert counted_ms(3, 5, resets) == 1000
    assert counted_ms(13, 1500, resets) == 1500


def test_a_reset_that_a_reader_did_not_know_of_takes_its_time_back() -> None:
    times = AppendTimes(5000)
    batch = EntryBatch.control(EntryKind.CLOCK, encode_body(ClockReset(300)))
    batch.stamp(7, 1, [0], 0)
    assert times.runs(batch) == [(0, 5000), (0, 300)]


def test_what_says_no_time_says_none() -> None:
    assert said_ms(EntryKind.TIME, encode_body(TimeMark(7))) == 7
    assert said_ms(EntryKind.CLOCK, encode_body(ClockReset(7))) == 7
    assert said_ms(EntryKind.KEEP, encode_body(TimeMark(7))) is None
    assert said_ms(EntryKind.TIME, b"no time") is None
