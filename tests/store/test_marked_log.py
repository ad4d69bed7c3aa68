"""The search for a mark agrees with a look at every entry, and looks at few."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import MOST_RUNS, ClockReset, Keep, TimeMark, encode_body
from quorumlog.log_state.log_state import EMPTY, LogState, Reset, counted_ms
from quorumlog.store.time_marks import LOOK_ENTRIES, Mark, mark_at_index, mark_at_time

KEEP = encode_body(Keep(0))


class MadeLog:
    def __init__(self, draw: Random, entries: int, segments: int) -> None:
        """Marks and other control entries at random places; the states at some boundaries are
        missing."""
        indices = range(entries)
        at = sorted(draw.sample(indices, draw.choice((0, 1, entries // 50, entries // 3))))
        times = sorted(draw.sample(range(1000, 1000 + 20 * entries), len(at)))
        self.written = [Mark(index, time_ms) for index, time_ms in zip(at, times, strict=True)]
        self.clock_resets: tuple[Reset, ...] = ()
        if at and draw.random() < 0.5:  # what stood in front of each is up to twice the time
            ends = sorted(draw.sample(at, min(len(at), draw.choice((1, 2, 20)))))
            self.written = [
                mark
                if mark.index in ends or mark.index > ends[-1]
                else Mark(mark.index, mark.time_ms + 10 * entries)
                for mark in self.written
            ]
            resets = [Reset(mark.index, mark.time_ms) for mark in self.written if mark.index in ends]
            self.clock_resets = tuple(resets[-MOST_RUNS:])
        self.marks = [
            Mark(mark.index, counted_ms(mark.index, mark.time_ms, self.clock_resets))
            for mark in self.written
        ]
        """With the times that count."""
        self.others = set(draw.sample(indices, entries // 10)) - set(at)
        self.begin_index = draw.choice((-1, entries // 3))
        self.entries = entries
        boundaries = sorted(draw.sample(range(self.begin_index + 1, entries - 1), segments))
        self.boundaries = [boundary for boundary in boundaries if draw.random() < 0.8]
        self.looked_at = 0

    def state_at(self, index: int) -> LogState:
        known = [mark for mark in self.written if mark.index <= index]
        return LogState(1, time_ms=known[-1].time_ms, time_index=known[-1].index) if known else EMPTY

    def states(self) -> Iterator[tuple[int, bytes]]:
        for index in reversed(self.boundaries):
            yield index, self.state_at(index).encode()
        if self.begin_index >= 0:
            yield self.begin_index, self.state_at(self.begin_index).encode()

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        assert self.begin_index < first_index < stop_index <= self.entries
        self.looked_at += stop_index - first_index
        resets = {reset.index for reset in self.clock_resets}
        found = [
            (m.index, EntryKind.CLOCK, encode_body(ClockReset(m.time_ms)))
            if m.index in resets
            else (m.index, EntryKind.TIME, encode_body(TimeMark(m.time_ms)))
            for m in self.written
        ]
        found += [(index, EntryKind.KEEP, KEEP) for index in self.others]
        for index, kind, body in sorted(found):
            if first_index <= index < stop_index:
                batch = EntryBatch.control(kind, body)
                batch.stamp(index, 1, [0], 0)
                yield batch


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_a_look_at_every_entry_finds(seed: int) -> None:
    draw = Random(seed)
    log = MadeLog(draw, draw.choice((30, 300)), draw.choice((0, 1, 5)))
    held = [mark for mark in log.marks if mark.index > log.begin_index or mark == log_begin_mark(log)]
    for index in range(log.begin_index + 1, log.entries):
        expected = [mark for mark in held if mark.index <= index]
        assert mark_at_index(log, index) == (expected[-1] if expected else None)
    for stop_index in (log.entries, draw.randint(log.begin_index + 1, log.entries)):
        for mark in log.marks:
            for time_ms in (mark.time_ms - 1, mark.time_ms, mark.time_ms + 1):
                expected = [m for m in held if m.time_ms <= time_ms and m.index < stop_index]
                assert mark_at_time(log, time_ms, stop_index) == (expected[-1] if expected else None)


def log_begin_mark(log: MadeLog) -> Mark | None:
    """Of the state of the begin: marks in front of that one are forgotten."""
    return next((m for m in reversed(log.marks) if m.index <= log.begin_index), None)


def test_it_looks_at_a_small_part_of_a_segment() -> None:
    log = MadeLog(Random(1), 30, 0)
    log.begin_index, log.entries, log.boundaries, log.others = -1, 1_000_000, [], set()
    log.written = [Mark(index, index) for index in range(0, 1_000_000, 1000)]
    assert mark_at_time(log, 123_456, log.entries) == Mark(123_000, 123_000)
    assert log.looked_at <= 20 * LOOK_ENTRIES
