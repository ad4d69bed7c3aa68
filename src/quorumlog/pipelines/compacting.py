"""compact: the latest value of each key, to Parquet, and from there back into a log.

Each part of the log is folded where an engine runs it, into a file that has the newest row of each key;
those files are folded here, in order. So memory is that of the result.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.arrow import ENTRY_SCHEMA, record_batch_of
from quorumlog.config import MIB
from quorumlog.errors import ConfigError
from quorumlog.pipelines.archive_folders import LOCK_NAME, TEMPORARY, asking, sync_path
from quorumlog.pipelines.engine import LocalEngine, WorkEngine
from quorumlog.pipelines.keys import KeyOf
from quorumlog.pipelines.places import (
    Ends,
    Place,
    chain_at_end,
    check_seen,
    connected,
    even_cuts,
    linked,
    open_log,
    parts_of,
    range_in,
)
from quorumlog.pipelines.replaying import cut
from quorumlog.pipelines.tables.target import checked_path

FOLD_BYTES = 32 * MIB
PART_BYTES = 64 * MIB
ABOUT_KEY = b"quorumlog.compaction"
_ROWS = pa.schema([pa.field("key", pa.binary()), *ENTRY_SCHEMA])


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a file, in its footer. Its rows are numbered for the log that they go to, so each
    range, up to its newest key, has a session of its own."""

    key: str
    compaction_id: str
    first_index: int
    stop_index: int

    @property
    def producer_id(self) -> str:
        return f"{self.compaction_id}-{self.first_index}-{self.stop_index}"


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
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
    engine: WorkEngine | None = None,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> CompactionResult:
    """Write rows `key, index, term, body` to `file` (Parquet), in order of index, the newest of each key
    in [first_index, stop_index) (default: the whole log); a file of an earlier compaction is replaced
    whole. `key`: json:PATH, arrow:COLUMN or prefix:BYTES of a body. `into`: a log that gets the bodies,
    exactly once for each `compaction_id` (a producer of it). `report` is called with entries done and in
    all.

    Raises ConfigError, BadRequest for bodies that `key` does not fit, LedgerError, DirectoryDamaged."""
    file = checked_path(file)
    KeyOf(key)  # wrong ones are told before anything is read
    if into is not None and not (into.servers and compaction_id):
        raise ConfigError("to compact into a log, give its servers and an id, by which it is repeated")
    appended, existing = 0, _existing(file)
    was_ours = existing is not None and (existing.key, existing.compaction_id) == (key, compaction_id)
    if into is not None and existing is not None and was_ours:
        # What a crash left: a file whose rows are not all in the log. The source has grown since, and
        # numbers of another range would leave out other rows.
        appended = _append(pq.read_table(file), into, existing)
    elif into is not None:
        with connected(into) as log:
            log.layout()  # one that is not there is told before anything is read
    with closing(open_log(source)) as log:
        first, stop = range_in(log, first_index, stop_index)
        edges = even_cuts(log, first, stop, PART_BYTES)
    rows, entries, ends = _ROWS.empty_table(), 0, None
    with _attempts(file) as attempts:
        works = [FoldWork(*part, key, attempts) for part in parts_of(source, edges)]
        for work, part in zip(works, (engine or LocalEngine()).map(fold, works), strict=True):
            ends = part.ends.behind(ends, work.first_index, source.name)
            with pa.OSFile(part.file) as stored:
                rows = _latest([rows, pa.ipc.open_file(stored).read_all()])
            os.unlink(part.file)
            entries += part.entries
            report(work.stop_index - first, stop - first)
    # What follows the newest key may be entries of the log's own, which a repetition may find more of.
    newest = pc.max(rows.column("index")).as_py()
    last = first if newest is None else newest + 1
    about = About(key=key, compaction_id=compaction_id, first_index=first, stop_index=last)
    _write(rows, file, about)
    if into is not None:
        appended += _append(rows, into, about)
    return CompactionResult(
        file=file,
        first_index=first,
        last_index=stop - 1,
        entries=entries,
        keys=rows.num_rows,
        appended=appended,
    )


@contextmanager
def _attempts(file: str) -> Iterator[str]:
    """A folder below one beside `file` for what works write; a run that was killed leaves it to the next
    one. Raises ConfigError while another run has it."""
    folder = os.path.abspath(file) + ".attempts"
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, LOCK_NAME)
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The run before removes it as it ends: who holds a file that is gone keeps nobody out.
            is_held = os.path.samestat(os.fstat(lock), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            is_held = False
        if not is_held:
            raise ConfigError(f"{file} is being written by another compaction; wait for it")
        try:
            _clear(folder)
            attempts = os.path.join(folder, uuid.uuid4().hex)
            os.mkdir(attempts)
            yield attempts
        finally:
            _clear(folder)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _clear(folder: str) -> None:
    """Of all but the lock. Works of a run that is over may write there until their folder is gone."""
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        while name != LOCK_NAME and os.path.lexists(path):
            try:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise


class FoldWork(msgspec.Struct, frozen=True):
    place: Place
    first_index: int
    stop_index: int
    key: str
    directory: str


class Folded(msgspec.Struct, frozen=True):
    file: str
    """Arrow: rows `key, index, term, body`, the newest of each key."""
    entries: int
    ends: Ends


def fold(work: FoldWork) -> Folded:
    """A work: under a name of its own."""
    key_of, first, stop = KeyOf(work.key), work.first_index, work.stop_index
    kept, waiting, waiting_bytes, entries = _ROWS.empty_table(), [], 0, 0
    before = last = -1
    check_seen(work.directory)
    with closing(open_log(work.place)) as log:
        for batch in linked(log.batches(first, stop), first, stop, None, work.place.name):
            before, last = batch.chain_before if before < 0 else before, chain_at_end(batch)
            rows = record_batch_of(batch)
            keys = key_of.keys(rows.column("body"), rows.column("index"))
            waiting.append(
                pa.Table.from_batches([rows]).add_column(0, pa.field("key", pa.binary()), keys)
            )
            entries += rows.num_rows
            waiting_bytes += batch.total_bytes
            if waiting_bytes >= FOLD_BYTES:
                kept, waiting, waiting_bytes = _latest([kept, *waiting]), [], 0
    kept = _latest([kept, *waiting])
    path = os.path.join(work.directory, f"{first:020d}-{uuid.uuid4().hex}.arrow")
    with (
        asking(work.directory),
        pa.OSFile(path, "wb") as stored,
        pa.ipc.new_file(stored, kept.schema) as writer,
    ):
        writer.write_table(kept)
    return Folded(path, entries, Ends(before, last))


def _latest(tables: list[pa.Table]) -> pa.Table:
    """The row with the highest index of each key; rows without a key are left out."""
    rows = pa.concat_tables(tables).combine_chunks()
    rows = rows.filter(rows.column("key").is_valid())
    newest = rows.select(["key", "index"]).group_by("key").aggregate([("index", "max")])
    # Indices rise from table to table, so the places of the newest are found by halving.
    indices = rows.column("index").to_numpy()
    wanted = newest.column("index_max").to_numpy().copy()
    wanted.sort()
    return rows.take(pa.array(indices.searchsorted(wanted)))


def _existing(file: str) -> About | None:
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
    with connected(into, about.producer_id) as log:
        first = number = log.last_sequence() + 1
        for part in cut(rows.column("body").slice(number).combine_chunks()):
            log.append_batch(part.to_pylist(), sequence=number)
            number += len(part)
    return number - first


def _write(rows: pa.Table, file: str, about: About) -> None:
    rows = rows.replace_schema_metadata({ABOUT_KEY: msgspec.json.encode(about)})
    folder = os.path.dirname(os.path.abspath(file))
    try:
        with asking(file):
            pq.write_table(rows, file + TEMPORARY, compression="zstd")
            sync_path(file + TEMPORARY)
            os.replace(file + TEMPORARY, file)
            sync_path(folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file + TEMPORARY)
