"""compact: the latest value of each key, to Parquet, and from there back into a log.

One pass; after each batch of rows only the newest row of a key is kept. So memory is that of the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.arrow import record_batch_of
from quorumlog.client import connect
from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import ConfigError
from quorumlog.pipelines.archive_parts import TEMPORARY, sync_path
from quorumlog.pipelines.keys import KeyOf
from quorumlog.pipelines.places import Place, linked, open_log
from quorumlog.pipelines.replaying import cut
from quorumlog.pipelines.tables.target import checked_path

FOLD_BYTES = 32 * MIB
ABOUT_KEY = b"quorumlog.compaction"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is made of, in its footer. Its rows are numbered for the log that they go to, so each
    range, up to its newest key, has a session of its own."""

    key: str
    compaction_id: str
    first_index: int
    stop_index: int

    @property
    def producer_id(self) -> str:
        return f"{self.compaction_id}-{self.first_index}-{self.stop_index}"


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    first_index: int
    last_index: int
    entries: int
    keys: int
    appended: int
    """To a log, by this run."""


def compact(
    source: Place,
    file: str,
    key: str,
    *,
    into: Place | None = None,
    compaction_id: str = "",
    first_index: int | None = None,
    stop_index: int | None = None,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> Compacted:
    """Write rows `key, index, term, body` to `file`, in order of index; one of an earlier compaction is
    replaced whole. `into`: a log that gets their bodies, exactly once for each `compaction_id` (a
    producer of it)."""
    key_of, file = KeyOf(key), checked_path(file)
    if into is not None and not (into.servers and compaction_id):
        raise ConfigError("to compact into a log, give its servers and an id, by which it is repeated")
    appended, standing = 0, _standing(file)
    was_ours = standing is not None and (standing.key, standing.compaction_id) == (key, compaction_id)
    if into is not None and standing is not None and was_ours:
        # What a crash left: a file whose rows are not all in the log. The source has grown since, and
        # numbers of another range would leave out other rows.
        appended = _append(pq.read_table(file), into, standing)
    waiting: list[pa.Table] = []
    kept, waiting_bytes, entries = None, 0, 0
    with closing(open_log(source)) as log:
        first = log.begin_index if first_index is None else first_index
        stop = log.stop_index if stop_index is None else min(stop_index, log.stop_index)
        for batch in linked(log.batches(first, stop), first, stop, None, source.name):
            rows = record_batch_of(batch)
            keys = key_of.keys(rows.column("body"), rows.column("index"))
            waiting.append(
                pa.Table.from_batches([rows]).add_column(0, pa.field("key", pa.binary()), keys)
            )
            entries += rows.num_rows
            waiting_bytes += batch.total_bytes
            if waiting_bytes >= FOLD_BYTES:
                kept, waiting, waiting_bytes = _latest(kept, waiting), [], 0
            report(batch.last_index + 1 - first, stop - first)
    rows = _latest(kept, waiting)
    # What follows the newest key may be entries of the log's own, which a repetition may find more of.
    newest = pc.max(rows.column("index")).as_py()
    last = first if newest is None else newest + 1
    about = About(key=key, compaction_id=compaction_id, first_index=first, stop_index=last)
    _write(rows, file, about)
    if into is not None:
        appended += _append(rows, into, about)
    return Compacted(
        file=file,
        first_index=first,
        last_index=stop - 1,
        entries=entries,
        keys=rows.num_rows,
        appended=appended,
    )


def _latest(kept: pa.Table | None, fresh: list[pa.Table]) -> pa.Table:
    """The row with the highest index of each key; rows without a key are left out."""
    tables = [*([] if kept is None else [kept]), *fresh]
    if not tables:
        return pa.schema(
            [("key", pa.binary()), ("index", pa.int64()), ("term", pa.int64()), ("body", pa.binary())]
        ).empty_table()
    rows = pa.concat_tables(tables).combine_chunks()
    rows = rows.filter(rows.column("key").is_valid())
    newest = rows.select(["key", "index"]).group_by("key").aggregate([("index", "max")])
    # Indices rise from table to table, so the places of the newest are found by halving.
    indices = rows.column("index").to_numpy()
    wanted = newest.column("index_max").to_numpy().copy()
    wanted.sort()
    return rows.take(pa.array(indices.searchsorted(wanted)))


def _standing(file: str) -> About | None:
    """What an earlier compaction has left there; None: there is no file. Raises ConfigError for what is
    none of ours."""
    if not os.path.exists(file):
        return None
    record = None
    if os.path.isfile(file):
        with suppress(pa.ArrowInvalid):
            record = (pq.read_schema(file).metadata or {}).get(ABOUT_KEY)
    if record is None:
        raise ConfigError(f"{file} is not of a compaction, and is not replaced; name another file")
    return msgspec.json.decode(record, type=About)


def _append(rows: pa.Table, into: Place, about: About) -> int:
    """Those that are not there yet."""
    with connect(
        into.servers,
        group=into.group or DEFAULT_GROUP,
        timeout_ms=into.timeout_ms,
        producer_id=about.producer_id,
    ) as log:
        first = number = log.last_sequence() + 1
        for part in cut(rows.column("body").slice(number).combine_chunks()):
            log.append_batch(part.to_pylist(), sequence=number)
            number += len(part)
    return number - first


def _write(rows: pa.Table, file: str, about: About) -> None:
    rows = rows.replace_schema_metadata({ABOUT_KEY: msgspec.json.encode(about)})
    folder = os.path.dirname(os.path.abspath(file))
    os.makedirs(folder, exist_ok=True)
    try:
        pq.write_table(rows, file + TEMPORARY, compression="zstd")
        sync_path(file + TEMPORARY)
        os.replace(file + TEMPORARY, file)
        sync_path(folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file + TEMPORARY)
