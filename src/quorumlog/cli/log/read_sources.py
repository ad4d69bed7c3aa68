"""Where `quorumlog read` takes entries from, a stopped member's directory or a running cluster; and an
entry as a line, for people and for programs."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from quorumlog.append_times import BEGINNING, AppendTimes, TimedEntry, milliseconds_of, time_of
from quorumlog.batch import EntryBatch
from quorumlog.cli.options import (
    ASK_AGAIN_S,
    LogServers,
    begin_index,
    refuse_another_group,
    refuse_dead_servers,
    refuse_future,
)
from quorumlog.cli.output import note
from quorumlog.client import Freshness, LedgerClient, leader_of
from quorumlog.entry import Entry
from quorumlog.errors import (
    DirectoryDamaged,
    IndexOutOfRange,
    LeaderNotReady,
    NotLeader,
    Overloaded,
    RequestTimeout,
    Unreachable,
)
from quorumlog.store.directory_reader import Damage, DirectoryReader, StoredMarks
from quorumlog.store.disk import OsDisk


def limited(entries: Iterable[Iterable[Entry]], limit: int | None) -> Iterator[Iterable[Entry]]:
    """The first `limit` of them; None: all."""
    if limit is None:
        yield from entries
        return
    if limit == 0:
        return
    limit = min(limit, sys.maxsize)  # `islice` takes no more, and no log holds more
    for batch in entries:
        part = list(islice(batch, limit))
        yield part
        limit -= len(part)
        if limit == 0:
            return


def first_of_last(
    last: int, begin: int, stop: int, read: Callable[[int, int], Iterable[Iterable[Entry]]]
) -> int:
    """Index at which the last `last` entries of [begin, stop) begin. No-ops are none: for as many as it
    has met it looks further back."""
    first = stop
    while last > 0 and first > begin:
        first, before = max(begin, first - last), first
        last -= sum(1 for batch in read(first, before) for _ in batch)
    return first


class Wanted(NamedTuple):
    """Which entries, as the options of `quorumlog read` say it."""

    first_index: int | None
    stop_index: int | None
    last: int | None
    since_ms: int | None
    with_time: bool


def stored(
    path: str, group: str | None, wanted: Wanted, *, local: bool, skip_damaged: bool
) -> Iterator[Iterable[Entry]]:
    first_index, stop_index, last, since_ms, with_time = wanted
    with DirectoryReader(OsDisk(), path) as reader:
        marks = StoredMarks(OsDisk(), reader)
        entries_of: EntriesOf = EntryBatch.entries
        if with_time:
            entries_of = timed_entries(
                lambda index: AppendTimes(marks.time_ms_at(index), marks.clock_resets)
            )
        refuse_another_group(path, reader.group, group)
        readable = (reader.ledger_end_index if local else reader.readable_index) + 1
        missing = reader.missing
        begin = max(reader.ledger_begin_index, 0)
        if last is not None:
            first_index = first_of_last(
                last,
                begin,
                readable,
                lambda at, stop: _held(reader, at, stop, EntryBatch.entries, skip_damaged=skip_damaged),
            )
        if since_ms is not None:
            if since_ms > time.time() * 1000:
                refuse_future(since_ms, marks.time_ms_at(readable - 1))
            first_index = min(marks.index_at(since_ms, readable), readable)
            stop_index = _stop_behind(first_index, stop_index)
        first = begin if first_index is None else first_index
        stop = max(readable, first + 1) if stop_index is None else stop_index
        is_at_end = stop_index is None and (first_index is None or first == readable)
        is_outside = first < begin or first >= readable
        is_missing = missing is not None and (stop_index is None or missing.index < stop_index)
        if first < stop and is_outside and not is_at_end and not (is_missing and first >= begin):
            raise _out_of_range(reader, first, readable, local=local)
        yield from _held(reader, first, min(stop, readable), entries_of, skip_damaged=skip_damaged)
        if stop_index is not None and first < readable < stop and not is_missing:
            raise _out_of_range(reader, readable, readable, local=local)
        if stop_index is None and readable <= reader.ledger_end_index:
            note(
                f"{reader.ledger_end_index + 1 - readable} more entries, up to index"
                f" {reader.ledger_end_index}, are not known to be committed; --local prints them"
            )

        if is_missing:
            assert missing is not None
            if not skip_damaged:
                raise reader.refusal(missing)
            last_stop = missing.stop_index if stop_index is None else min(stop_index, missing.stop_index)
            yield from _held(reader, max(first, missing.index), last_stop, entries_of, skip_damaged=True)


EntriesOf = Callable[[EntryBatch], Iterable[Entry]]


def timed_entries(times_from: Callable[[int], AppendTimes]) -> EntriesOf:
    """Of batches in order. The time at the first entry is requested, and again after a gap: a mark may
    have been in it."""
    times, next_index = AppendTimes(-1), -1

    def entries_of(batch: EntryBatch) -> Iterable[Entry]:
        nonlocal times, next_index
        if batch.first_index != next_index:
            times = times_from(batch.first_index)
        next_index = batch.last_index + 1
        return times.entries(batch)

    return entries_of


def _held(
    reader: DirectoryReader, first: int, stop: int, entries_of: EntriesOf, *, skip_damaged: bool
) -> Iterator[Iterable[Entry]]:
    if not skip_damaged:
        try:
            yield from map(entries_of, reader.batches(first, stop))
        except DirectoryDamaged as damage:
            raise DirectoryDamaged(
                f"{damage}; --skip-damaged continues after it",
                path=damage.path,
                position=damage.position,
                index=damage.index,
            ) from None
        return
    for piece in reader.pieces(first, stop):
        if isinstance(piece, Damage):
            note(f"skipped: {piece.path}: {piece.problem} ({piece.place})")
        else:
            yield entries_of(piece)


def _out_of_range(reader: DirectoryReader, index: int, readable: int, *, local: bool) -> IndexOutOfRange:
    """In the words of a server."""
    begin = max(reader.ledger_begin_index, 0)
    last = "ledger_end_index" if local else "committed_index"
    more = (
        ""
        if index > reader.ledger_end_index
        else "; --local also prints entries that may be uncommitted"
    )
    if index < begin:
        more = f": entries below {begin} are gone from this directory; read from there on"
    return IndexOutOfRange(
        f"index {index} is not between ledger_begin_index {begin} and {last} {readable - 1}{more}",
        ledger_begin_index=begin,
        committed_index=reader.committed_index,
    )


class ReadFrom(NamedTuple):
    """As `--consistency`, `--max-staleness` and `--from-member` say it."""

    consistency: Literal["read_index", "committed"] | None
    max_staleness_s: float | None
    member: str | None


def served(
    at: LogServers, wanted: Wanted, choice: ReadFrom, *, follow: bool, until_end: bool
) -> Iterator[Iterable[Entry]]:
    first_index, stop_index, last, since_ms, with_time = wanted
    staleness_ms = None if choice.max_staleness_s is None else choice.max_staleness_s * 1000
    with at.client(
        read_consistency=choice.consistency, max_staleness_ms=staleness_ms, read_from=choice.member
    ) as log:
        if not follow:
            refuse_dead_servers(log, at.timeout)
        if last is not None:
            first_index = first_of_last(
                last,
                begin_index(log),
                log.freshness().index + 1,
                lambda at, stop: (batch.entries() for batch in log.read_batches(at, stop)),
            )
        if since_ms is not None:
            if since_ms > time.time() * 1000:
                end_index = log.end_index()
                newest = log.time_at(end_index) if end_index >= 0 else None
                refuse_future(since_ms, _milliseconds(newest))
            first_index = log.index_at(time_of(since_ms) or BEGINNING)
            stop_index = _stop_behind(first_index, stop_index)
        first = first_index or 0
        while True:
            try:
                if follow:
                    yield from _followed(log, first, stop_index, with_time=with_time)
                    return
                fresh = yield from _read_up_to(
                    log, first, stop_index, until_end=until_end, with_time=with_time
                )
            except IndexOutOfRange as error:
                # Nobody said where to begin, and the log no longer begins at 0.
                if first_index is not None or first or error.ledger_begin_index <= 0:
                    raise _named(error, first, stop_index) from None
                first = error.ledger_begin_index
                continue
            if fresh is not None and (staleness_ms is not None or choice.consistency is not None):
                age = "of unknown age" if fresh.age_ms is None else f"at most {fresh.age_ms:.0f} ms old"
                note(f"{fresh.member_id} answered as of index {fresh.index}, {age}")
            return


def _stop_behind(first_index: int, stop_index: int | None) -> int | None:
    """Say why nothing is printed: `--since` is a time, and `--to` an index."""
    if stop_index is not None and stop_index <= first_index:
        note(
            f"nothing to print: --since begins at index {first_index}, and --to {stop_index} ends below"
        )
        return first_index
    return stop_index


def _named(error: IndexOutOfRange, first: int, stop_index: int | None) -> IndexOutOfRange:
    """In the words of the options, where `--to` was the mistake."""
    if (
        stop_index is None
        or not error.ledger_begin_index <= first <= error.committed_index < stop_index - 1
    ):
        return error
    return IndexOutOfRange(
        f"--to {stop_index} is above the committed index {error.committed_index}; the"
        " entries up to it were printed",
        ledger_begin_index=error.ledger_begin_index,
        committed_index=error.committed_index,
    )


def _read_up_to(
    log: LedgerClient, first: int, stop_index: int | None, *, until_end: bool, with_time: bool
) -> Generator[Iterable[Entry], None, Freshness | None]:
    """Returns how fresh the last answer was."""
    timed = timed_entries(
        lambda index: AppendTimes(_milliseconds(log.time_at(index)), log.clock_resets())
    )
    entries_of: EntriesOf = timed if with_time else EntryBatch.entries
    while True:
        batches = log.read_batches(first, stop_index)
        for batch in batches:
            first = batch.first_index + batch.count
            yield entries_of(batch)
        if not until_end or first > log.freshness().index:
            return batches.freshness


def _followed(
    log: LedgerClient, first: int, stop_index: int | None, *, with_time: bool
) -> Iterator[Iterable[Entry]]:
    while True:
        try:
            for entry in log.tail(first, wait=True, with_time=with_time):
                if stop_index is not None and entry.index >= stop_index:
                    return
                yield (entry,)
                first = entry.index + 1
                if first == stop_index:
                    return
        except _PASSING as error:
            _sit_out(log, f"reading continues at index {first}: {error}")


def served_to(
    name: str, hold: bool, at: LogServers, stop_index: int | None, limit: int | None, *, follow: bool
) -> Iterator[list[Entry]]:
    """Entries that the reader of this name has not read yet. A caller that asks for the next part has
    done with the one before: the reader moves after it."""
    left = sys.maxsize if limit is None else limit
    with at.client() as log:
        if not follow:
            refuse_dead_servers(log, at.timeout)
        reader = log.reader(name, hold=True if hold else None)
        while left and (stop_index is None or reader.position < stop_index):
            try:
                for batch in reader.read_batches(stop_index):
                    entries = list(islice(batch.entries(), left))
                    yield entries
                    left -= len(entries)
                    done = entries[-1].index + 1 if left == 0 else batch.first_index + batch.count
                    reader.commit(done)
                    if left == 0:
                        return
                if not follow:
                    return
                for _ in reader.tail():
                    break  # there is more
            except _PASSING as error:
                if not follow:
                    raise
                _sit_out(log, f"{name} continues at index {reader.position}: {error}")


def _milliseconds(time: datetime | None) -> int:
    return -1 if time is None else milliseconds_of(time)


_PASSING = (Unreachable, RequestTimeout, NotLeader, LeaderNotReady, Overloaded)
"""What a client that reads for ever sits out."""


def _sit_out(log: LedgerClient, what: str) -> None:
    """Until some member leads."""
    note(f"waiting for the cluster, {what}")
    while leader_of(log.status()) is None:
        time.sleep(ASK_AGAIN_S)
    note("the cluster answers again")


_encode = msgspec.json.Encoder().encode


def _as_text(entry: Entry) -> bytes:
    if isinstance(entry, TimedEntry):
        return f"{_spoken(entry)} ".encode() + entry.body + b"\n"
    return entry.body + b"\n"


def _spoken(entry: TimedEntry) -> str:
    """All equally long; `-` where no time is known."""
    time = entry.append_time
    return f"{'-':24}" if time is None else f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


def _as_json(entry: Entry) -> bytes:
    row: dict[str, object] = {"index": entry.index, "term": entry.term}
    if isinstance(entry, TimedEntry):
        row["append_time"] = None if entry.append_time is None else _spoken(entry)
    try:
        row["body"] = entry.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(entry.body).decode()
    return _encode(row) + b"\n"


def _as_hex(entry: Entry) -> bytes:
    time = f"{_spoken(entry)} " if isinstance(entry, TimedEntry) else ""
    return f"{time}{entry.index} {entry.term} {entry.body.hex()}\n".encode()


WRITERS: dict[str, Callable[[Entry], bytes]] = {"text": _as_text, "json": _as_json, "hex": _as_hex}
"""By the value of `--format`."""
