"""stats: what a log holds, by minute of its time marks, by term, by size, by key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.append_times import AppendTimes
from quorumlog.arrow import ENTRY_SCHEMA, TIME_COLUMN, record_batch_of, schema_of
from quorumlog.pipelines.keys import KeyOf
from quorumlog.pipelines.places import Place, linked, open_log

MINUTE_MS = 60_000
_SIZES = [0, *(1 << power for power in range(4, 31, 2))]


class Counted(msgspec.Struct):
    entries: int = 0
    bytes: int = 0
    """Of bodies."""


class Minute(msgspec.Struct, frozen=True):
    time_ms: int
    """Where it begins, since 1970; -1: in front of the first time mark."""
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


def statistics(
    place: Place,
    *,
    first_index: int | None = None,
    stop_index: int | None = None,
    key: str = "",
    top: int = 10,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> Statistics:
    """Of the whole log, or a range. Raises BadRequest for bodies that `key` does not fit."""
    key_of = KeyOf(key) if key else None
    minutes: dict[int, Counted] = {}
    terms: dict[int, Counted] = {}
    sizes = np.zeros(len(_SIZES), np.int64)
    keys = _no_keys()
    data = controls = body_bytes = largest = 0
    schema = schema_of([*ENTRY_SCHEMA.names, TIME_COLUMN])
    with closing(open_log(place)) as log:
        first = log.begin_index if first_index is None else first_index
        stop = log.stop_index if stop_index is None else min(stop_index, log.stop_index)
        times = AppendTimes(log.time_ms_at(first) if first < stop else -1)
        for batch in linked(log.batches(first, stop), first, stop, None, place.name):
            rows = record_batch_of(batch, schema, times=times.runs(batch))
            lengths = pc.binary_length(rows.column("body")).to_numpy(zero_copy_only=False)
            data += rows.num_rows
            controls += batch.count - rows.num_rows
            body_bytes += int(lengths.sum())
            largest = max(largest, int(lengths.max(initial=0)))
            at = rows.column(TIME_COLUMN).cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            _count(minutes, np.where(at < 0, -1, at - at % MINUTE_MS), lengths)
            _count(terms, rows.column("term").to_numpy(), lengths)
            sizes += np.bincount(
                np.searchsorted(_SIZES, lengths, side="right") - 1, minlength=len(_SIZES)
            )
            if key_of is not None:
                found = key_of.keys(rows.column("body"), rows.column("index"))
                keys = _with_keys(keys, found, pa.array(lengths.astype(np.int64)))
            report(batch.last_index + 1 - first, stop - first)
        group = log.group
    ordered = keys.sort_by([("bytes", "descending"), ("entries", "descending")]).slice(0, top)
    return Statistics(
        place=place.name,
        group=group,
        first_index=first,
        last_index=stop - 1,
        entries=data,
        control_entries=controls,
        body_bytes=body_bytes,
        largest_body_bytes=largest,
        minutes=tuple(
            Minute(at, each.entries, each.bytes, round(each.entries / 60, 1))
            for at, each in sorted(minutes.items())
        ),
        terms=tuple(Term(term, each.entries, each.bytes) for term, each in sorted(terms.items())),
        sizes=tuple(
            Size(low, int(count)) for low, count in zip(_SIZES, sizes.tolist(), strict=True) if count
        ),
        keys=tuple(
            Key("(none)" if row["key"] is None else shown(row["key"]), row["entries"], row["bytes"])
            for row in ordered.to_pylist()
        ),
        distinct_keys=keys.num_rows,
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
        counted = into.setdefault(group, Counted())
        counted.entries += count
        counted.bytes += int(size)


def _no_keys() -> pa.Table:
    fields = {"key": pa.binary(), "entries": pa.int64(), "bytes": pa.int64()}
    return pa.schema(list(fields.items())).empty_table()


def _with_keys(keys: pa.Table, found: pa.Array, lengths: pa.Array) -> pa.Table:
    ones = pa.array(np.ones(len(found), np.int64))
    fresh = pa.table({"key": found, "entries": ones, "bytes": lengths})
    both = (
        pa.concat_tables([keys, fresh]).group_by("key").aggregate([("entries", "sum"), ("bytes", "sum")])
    )
    return both.rename_columns({"entries_sum": "entries", "bytes_sum": "bytes"})
