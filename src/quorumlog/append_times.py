"""AppendTimes: when entries were appended that are read in order, by the time marks among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from quorumlog.batch import EntryBatch
from quorumlog.entry import Entry, EntryKind
from quorumlog.log_state.log_state import Reset, counted_ms, said_ms

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class TimedEntry(Entry, frozen=True, array_like=True, gc=False):
    append_time: datetime | None = None
    """Time of the last time mark before the entry, or of a later reset of the log's clock if that is
    earlier, in UTC; None if there is no mark."""


def time_of(time_ms: int) -> datetime | None:
    """In UTC; None below 0, and beyond Python's calendar."""
    try:
        return BEGINNING + timedelta(milliseconds=time_ms) if time_ms >= 0 else None
    except OverflowError:
        return None


def milliseconds_of(time: datetime) -> int:
    """Since 1970, rounded down; of a time with a zone."""
    return (time - BEGINNING) // timedelta(milliseconds=1)


class AppendTimes:
    def __init__(self, time_ms: int, resets: Sequence[Reset] = ()) -> None:
        """`time_ms`: that of the first entry to come; -1: none. `resets`: of the log's clock, also later
        ones."""
        self._time_ms = time_ms
        self._resets = resets

    def runs(self, batch: EntryBatch) -> list[tuple[int, int]]:
        """[(position in the batch, time from there on), ...] of the next batch, the first at 0. Without
        control entries, which is the rule, there is one. Times fall only at a reset that was not known
        before."""
        runs = [(0, self._time_ms)]
        for at in batch.log_state_positions():
            magic = int(batch.headers()["magic"][at])
            mark_ms = said_ms(magic, batch.body(at))
            if mark_ms is None:
                continue
            time_ms = counted_ms(batch.first_index + at, mark_ms, self._resets)
            if time_ms > self._time_ms or (magic == EntryKind.CLOCK and time_ms < self._time_ms):
                self._time_ms = time_ms
                runs.append((at, time_ms))
        return runs

    def entries(self, batch: EntryBatch) -> Iterator[TimedEntry]:
        """Of the next batch, as `EntryBatch.entries`."""
        runs = self.runs(batch)
        first_index = batch.first_index
        stops = [first_index + at for at, _ in runs[1:]] + [first_index + batch.count]
        times = iter(zip(stops, [time_of(time_ms) for _, time_ms in runs], strict=True))
        stop, time = next(times)
        for entry in batch.entries():
            while entry.index >= stop:
                stop, time = next(times)
            yield TimedEntry(entry.index, entry.term, entry.body, time)
