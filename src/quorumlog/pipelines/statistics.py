"""stats: contents of a log, by minute of its time marks, by term, by size, by key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.append_times import AppendTimes
from quorumlog.arrow import ENTRY_SCHEMA, TIME_COLUMN, record_batch_of, schema_of
from quorumlog.config import MIB
from quorumlog.pipelines.engine import LocalEngine, WorkEngine
from quorumlog.pipelines.keys import KeyOf
from quorumlog.pipelines.places import (
    Ends,
    Place,
    chain_at_end,
    even_cuts,
    linked,
    open_log,
    parts_of,
    range_in,
)

MINUTE_MS = 60_000
PART_BYTES = 64 * MIB
_SIZES = [0, *(1 << power for power in range(4, 31, 2))]


class Counted(msgspec.Struct):
    entries: int = 0
    bytes: int = 0
    """Of bodies."""


class Minute(msgspec.Struct, frozen=True):
    time_ms: int
    """Where it begins, since 1970; -1: before the first time mark."""
    entries: int
    bytes: int
    entries_per_s: float


class Term(msgspec.Struct, frozen=True):
    term: int
    entries: int
    bytes: int


class Size(msgspec.Struct, frozen=True):
    from_bytes: int
    """Of bodies that have at least so many, and fewer than the next row says."""
    entries: int


class Key(msgspec.Struct, frozen=True):
    key: str
    entries: int
    bytes: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    group: str
    first_index: int
    last_index: int
    entries: int
    """That are data."""
    control_entries: int
    body_bytes: int
    largest_body_bytes: int
    minutes: tuple[Minute, ...]
    terms: tuple[Term, ...]
    sizes: tuple[Size, ...]
    keys: tuple[Key, ...]
    """Those with most bytes first."""
    distinct_keys: int


class CountWork(msgspec.Struct, frozen=True):
    place: Place
    first_index: int
    stop_index: int
    key: str


class PartCounted(msgspec.Struct):
    """Of a part of a log, or of several that follow each other."""

    entries: int = 0
    control_entries: int = 0
    body_bytes: int = 0
    largest_body_bytes: int = 0
    minutes: dict[int, Counted] = {}
    terms: dict[int, Counted] = {}
    sizes: list[int] = []
    """As `_SIZES` has them."""
    keys: bytes = b""
    """An Arrow stream of (key, entries, bytes); empty: none were asked for."""
    ends: Ends = Ends(-1, -1)


def count(work: CountWork) -> PartCounted:
    """A work: nothing is written. Raises BadRequest for bodies that the key does not fit."""
    first, stop, place = work.first_index, work.stop_index, work.place
    key_of = KeyOf(work.key) if work.key else None
    found = PartCounted(minutes={}, terms={})
    sizes, keys = np.zeros(len(_SIZES), np.int64), _Keys()
    schema = schema_of([*ENTRY_SCHEMA.names, TIME_COLUMN])
    with closing(open_log(place)) as log:
        times = AppendTimes(log.time_ms_at(first), log.clock_resets())
        before = last = -1
        for batch in linked(log.batches(first, stop), first, stop, None, place.name):
            before, last = batch.chain_before if before < 0 else before, chain_at_end(batch)
            rows = record_batch_of(batch, schema, times=times.runs(batch))
            lengths = pc.binary_length(rows.column("body")).to_numpy(zero_copy_only=False)
            found.entries += rows.num_rows
            found.control_entries += batch.count - rows.num_rows
            found.body_bytes += int(lengths.sum())
            found.largest_body_bytes = max(found.largest_body_bytes, int(lengths.max(initial=0)))
            at = rows.column(TIME_COLUMN).cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            _count(found.minutes, np.where(at < 0, -1, at - at % MINUTE_MS), lengths)
            _count(found.terms, rows.column("term").to_numpy(), lengths)
            sizes += np.bincount(
                np.searchsorted(_SIZES, lengths, side="right") - 1, minlength=len(_SIZES)
            )
            if key_of is not None:
                of_rows = key_of.keys(rows.column("body"), rows.column("index"))
                ones, sizes_64 = np.ones(len(lengths), np.int64), lengths.astype(np.int64)
                keys.add(pa.table([of_rows, ones, sizes_64], schema=_KEY_SCHEMA))
    found.sizes, found.ends = sizes.tolist(), Ends(before, last)
    if key_of is not None:
        sink = pa.BufferOutputStream()
        counted = keys.table()
        with pa.ipc.new_stream(sink, counted.schema) as stream:
            stream.write_table(counted)
        found.keys = sink.getvalue().to_pybytes()
    return found


def statistics(
    place: Place,
    *,
    first_index: int | None = None,
    stop_index: int | None = None,
    key: str = "",
    top: int = 10,
    engine: WorkEngine | None = None,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> Statistics:
    """Of the whole log, or [first_index, stop_index), counted by an engine (default: threads of this
    process). `key`: as of `compact`; the `top` largest are returned. `report` is called with entries
    done and in all. Raises BadRequest for bodies that `key` does not fit, ConfigError, LedgerError,
    DirectoryDamaged."""
    if key:
        KeyOf(key)  # wrong ones are told before anything is read
    with closing(open_log(place)) as log:
        first, stop = range_in(log, first_index, stop_index)
        group, edges = log.group, even_cuts(log, first, stop, PART_BYTES)
    works = [CountWork(*part, key) for part in parts_of(place, edges)]
    whole = PartCounted(minutes={}, terms={})
    sizes, keys = np.zeros(len(_SIZES), np.int64), _Keys()
    result_bytes = PART_BYTES if key else 0  # keys are parts of bodies
    parts = (engine or LocalEngine()).map(count, works, result_bytes)
    ends: Ends | None = None
    for work, part in zip(works, parts, strict=True):
        ends = part.ends.behind(ends, work.first_index, place.name)
        whole.entries += part.entries
        whole.control_entries += part.control_entries
        whole.body_bytes += part.body_bytes
        whole.largest_body_bytes = max(whole.largest_body_bytes, part.largest_body_bytes)
        for into, counted in ((whole.minutes, part.minutes), (whole.terms, part.terms)):
            for name, each in counted.items():
                _add(into, name, each.entries, each.bytes)
        sizes += np.array(part.sizes, np.int64)
        if part.keys:
            keys.add(pa.ipc.open_stream(part.keys).read_all())
        report(work.stop_index - first, stop - first)
    by_key = keys.table()
    ordered = by_key.sort_by([("bytes", "descending"), ("entries", "descending"), ("key", "ascending")])
    return Statistics(
        place=place.name,
        group=group,
        first_index=first,
        last_index=stop - 1,
        entries=whole.entries,
        control_entries=whole.control_entries,
        body_bytes=whole.body_bytes,
        largest_body_bytes=whole.largest_body_bytes,
        minutes=tuple(
            Minute(at, each.entries, each.bytes, round(each.entries / 60, 1))
            for at, each in sorted(whole.minutes.items())
        ),
        terms=tuple(Term(term, each.entries, each.bytes) for term, each in sorted(whole.terms.items())),
        sizes=tuple(
            Size(low, int(count)) for low, count in zip(_SIZES, sizes.tolist(), strict=True) if count
        ),
        keys=tuple(
            Key("(none)" if row["key"] is None else shown(row["key"]), row["entries"], row["bytes"])
            for row in ordered.slice(0, top).to_pylist()
        ),
        distinct_keys=by_key.num_rows,
    )


def shown(key: bytes) -> str:
    """Text where it is text, else hexadecimal."""
    text = key.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else key.hex()


def _count(into: dict[int, Counted], groups: np.ndarray, lengths: np.ndarray) -> None:
    """A few groups a batch, however many entries."""
    found, places = np.unique(groups, return_inverse=True)
    entries = np.bincount(places, minlength=len(found))
    sums = np.bincount(places, weights=lengths, minlength=len(found))
    for group, count, size in zip(found.tolist(), entries.tolist(), sums.tolist(), strict=True):
        _add(into, group, count, int(size))


def _add(into: dict[int, Counted], group: int, entries: int, size: int) -> None:
    counted = into.setdefault(group, Counted())
    counted.entries += entries
    counted.bytes += size


_KEY_SCHEMA = pa.schema([("key", pa.binary()), ("entries", pa.int64()), ("bytes", pa.int64())])


class _Keys:
    """Counted by key. New rows wait until they are as many as those that are counted, so that these are
    not gone through for each batch."""

    def __init__(self) -> None:
        self._counted = _KEY_SCHEMA.empty_table()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= self._counted.num_rows:
            self._count()

    def table(self) -> pa.Table:
        self._count()
        return self._counted

    def _count(self) -> None:
        rows = pa.concat_tables([self._counted, *self._waiting])
        counted = rows.group_by("key").aggregate([("entries", "sum"), ("bytes", "sum")])
        self._counted = counted.rename_columns({"entries_sum": "entries", "bytes_sum": "bytes"})
        self._waiting, self._waiting_rows = [], 0
