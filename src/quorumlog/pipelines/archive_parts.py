"""One Parquet file of an archive: entries as its rows, and rows as the very entries again.

A row has every field of an entry's header that does not follow from its body, so an entry is rebuilt
byte for byte: its digests are checked as those of a member are. Control entries are no rows, for readers
with other tools; they are kept whole in the footer of their file.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.append_times import AppendTimes
from quorumlog.arrow import record_batch_of
from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.errors import ProtocolViolation, StoreFailure
from quorumlog.header_array import HEADER_DTYPE
from quorumlog.log_state.log_state import Reset, said_ms
from quorumlog.pipelines.archive_folders import asking, folder_at, is_object, why
from quorumlog.pipelines.places import broken, chain_at_end

ROW_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("append_time", pa.timestamp("ms", tz="UTC")),
        pa.field("channel", pa.int32(), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
        pa.field("body_crc", pa.int64(), nullable=False),
        pa.field("chain_crc", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)


def _resets_in(batch: EntryBatch) -> tuple[Reset, ...]:
    """Of the log's clock."""
    kinds = batch.headers()["magic"]
    return tuple(
        Reset(batch.first_index + at, time_ms)
        for at in batch.log_state_positions()
        if kinds[at] == EntryKind.CLOCK
        if (time_ms := said_ms(EntryKind.CLOCK, batch.body(at))) is not None
    )


def split_controls(encoded: bytes) -> list[tuple[int, bytes]]:
    """(index, entry) of each, in order."""
    controls, at = [], 0
    while at < len(encoded):
        header = unpack_header(memoryview(encoded)[at : at + HEADER_BYTES])
        controls.append((header.index, encoded[at : at + header.size]))
        at += header.size
    return controls


def batch_of(rows: pa.RecordBatch, controls: Sequence[tuple[int, bytes]]) -> EntryBatch:
    """The entries, in order of index. Rows that were changed make entries whose digests are wrong:
    the reader checks them."""
    bodies = rows.column("body")
    sizes = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64)
    headers = np.empty(rows.num_rows, HEADER_DTYPE)
    headers["magic"] = EntryKind.NORMAL
    headers["size"] = sizes + HEADER_BYTES
    headers["body_len"] = sizes
    indices = rows.column("index").to_numpy()
    headers["index"] = indices
    for name in ("term", "pos", "channel", "chain_crc", "body_crc"):
        headers[name] = rows.column(name).to_numpy()
    encoded = pa.Array.from_buffers(
        pa.binary(HEADER_BYTES), rows.num_rows, [None, pa.py_buffer(headers)]
    ).cast(pa.binary())
    entries = pc.binary_join_element_wise(encoded, bodies, b"")
    if controls:
        entries = pa.concat_arrays([entries, pa.array([entry for _, entry in controls], pa.binary())])
        places = np.concatenate([indices, np.array([index for index, _ in controls], np.int64)])
        entries = entries.take(pa.array(np.argsort(places, kind="stable")))
    _, offset_buffer, data = entries.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[entries.offset : entries.offset + len(entries) + 1]
    taken = memoryview(data)[int(offsets[0]) : int(offsets[-1])] if len(entries) else b""
    return EntryBatch(taken, np.diff(offsets.astype(np.int64)))


def check(batch: EntryBatch) -> None:
    """Both digests of every entry. Raises ProtocolViolation."""
    batch.check_encoding()
    batch.check_sequence(batch.first_index, batch.chain_before)
    batch.check_bodies()


# ----------------------------------------------------------------
# PartWriter, read_part: written under the name of an attempt and synced; `Archive` says when it counts.

CONTROLS_KEY = b"quorumlog.controls"
PART_KEY = b"quorumlog.part"
ROW_GROUP_BYTES = 16 * MIB


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Entries [first_index, stop_index) of a log in one file."""

    file: str
    first_index: int
    stop_index: int
    rows: int
    """Entries that are data; the others are control entries."""
    bytes: int
    """Of the log."""
    chain_before: int
    last_term: int
    last_chain: int
    time_ms: int
    """The time at its end, as known when it was written; -1: there is no mark."""
    clock_resets: tuple[Reset, ...] = ()
    """Of the log's clock, among its entries."""
    file_bytes: int = -1
    """Of the file; -1: of an archive of version 1, and in the file itself."""


class PartWriter:
    """`add` in order, then `finish`; `abandon` otherwise."""

    def __init__(self, directory: str, run: str, first_index: int) -> None:
        self.name = f"part-{first_index:020d}-{run}-{uuid.uuid4().hex}.parquet"
        """Of the file in `directory`: two attempts at one part never meet."""
        self._folder = folder_at(directory)
        self._file = self._folder.create(self.name)
        self._writer = pq.ParquetWriter(
            self._file,
            ROW_SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=["term", "append_time", "channel"],
            column_encoding={"index": "DELTA_BINARY_PACKED", "pos": "DELTA_BINARY_PACKED"},
            write_statistics=["index", "term", "append_time"],
            write_page_checksum=True,
        )
        self._first_index = first_index
        self._rows: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._controls: list[bytes] = []
        self.row_count = 0
        self._end: tuple[int, int, int] = (first_index, 0, 0)
        self._chain_before = -1
        self._time_ms = -1
        self._resets: tuple[Reset, ...] = ()
        self.bytes = 0

    def add(self, batch: EntryBatch, times: AppendTimes) -> None:
        runs = times.runs(batch)
        rows, self._time_ms = record_batch_of(batch, ROW_SCHEMA, times=runs), runs[-1][1]
        self._resets += _resets_in(batch)
        if self._chain_before < 0:
            self._chain_before = batch.chain_before
        self._end = (batch.last_index + 1, int(batch.words()[2][-1]), chain_at_end(batch))
        self.bytes += batch.total_bytes
        self.row_count += rows.num_rows
        self._controls += [bytes(batch.slice(at, at + 1).buffer) for at in batch.control_positions()]
        # Cut by bodies alone: the file does not depend on how its entries came in batches.
        ends = np.cumsum(
            pc.binary_length(rows.column("body")).to_numpy(zero_copy_only=False), dtype=np.int64
        )
        at = 0
        while at < rows.num_rows:
            left = ROW_GROUP_BYTES - self._waiting_bytes + (int(ends[at - 1]) if at else 0)
            stop = min(int(np.searchsorted(ends, left)) + 1, rows.num_rows)
            self._rows.append(rows.slice(at, stop - at))
            self._waiting_bytes += int(ends[stop - 1]) - (int(ends[at - 1]) if at else 0)
            at = stop
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self._write()

    def _write(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._rows, ROW_SCHEMA).combine_chunks()
            with asking(self._folder.path):
                self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows, self._waiting_bytes = [], 0

    def finish(self) -> Part:
        self._write()
        stop_index, last_term, last_chain = self._end
        part = Part(
            file=f"part-{self._first_index:020d}-{stop_index:020d}.parquet",
            first_index=self._first_index,
            stop_index=stop_index,
            rows=self.row_count,
            bytes=self.bytes,
            chain_before=self._chain_before,
            last_term=last_term,
            last_chain=last_chain,
            time_ms=self._time_ms,
            clock_resets=self._resets,
        )
        controls = base64.b64encode(b"".join(self._controls))
        self._writer.add_key_value_metadata(
            {CONTROLS_KEY: controls, PART_KEY: msgspec.json.encode(part)}
        )
        with asking(self._folder.path):
            self._writer.close()
        return msgspec.structs.replace(part, file_bytes=self._folder.finish(self.name, self._file))

    def abandon(self) -> None:
        for ended in (self._writer.close, self._file.close, lambda: self._folder.delete([self.name])):
            with suppress(Exception):
                ended()


def part_of_footer(path: str) -> Part:
    """As the file says it of itself, with its size. Raises DirectoryDamaged, StoreFailure."""
    try:
        with _source([path]) as source:
            metadata = pq.read_metadata(source).metadata or {}
            part = msgspec.json.decode(metadata[PART_KEY], type=Part)
            return msgspec.structs.replace(part, file_bytes=source.size())
    except (OSError, KeyError, ValueError, pa.ArrowException, msgspec.DecodeError) as error:
        raise unreadable(path, -1, error) from error


def unreadable(path: str, index: int, error: Exception) -> StoreFailure:
    """DirectoryDamaged, unless it is the way to an object store that failed."""
    if is_object(path) and "AWS Error" in str(error):
        return StoreFailure(f"{path}: {why(error)}; repeat the command")
    return broken(path, index, f"the file cannot be read: {error}")


def _source(paths: Sequence[str]) -> pa.NativeFile:
    """The first that is there."""
    for path in paths[:-1]:
        with suppress(FileNotFoundError):
            return _open(path)
    return _open(paths[-1])


def _open(path: str) -> pa.NativeFile:
    return folder_at(os.path.dirname(path)).open(os.path.basename(path))


@contextmanager
def _opened(paths: Sequence[str]) -> Iterator[pq.ParquetFile]:
    with _source(paths) as source:
        is_far = is_object(paths[-1])  # one request for the columns of a row group
        yield pq.ParquetFile(source, pre_buffer=is_far, page_checksum_verification=True)


def read_part(
    paths: Sequence[str], part: Part, first_index: int, stop_index: int
) -> Iterator[EntryBatch]:
    """Entries of the range that lie in this part, as its log has them; digests are checked. `paths`:
    where its file may be. Raises DirectoryDamaged, StoreFailure."""
    path = paths[-1]
    next_index, chain = part.first_index, part.chain_before
    is_first = True
    try:
        with _opened(paths) as file:
            metadata = file.metadata.metadata or {}
            controls = split_controls(base64.b64decode(metadata[CONTROLS_KEY]))
            for number in range(file.metadata.num_row_groups + 1):
                stop = _stop_of(file, number, part)
                below = [each for each in controls if next_index <= each[0] < stop]
                if next_index == stop:
                    continue
                if stop <= first_index or next_index >= stop_index:
                    next_index, is_first = stop, False
                    continue
                batch = batch_of(_row_group(file, number), below)
                check(batch)
                if batch.first_index != next_index or batch.last_index + 1 != stop:
                    raise broken(path, next_index, "rows are missing or too many")
                if is_first and batch.chain_before != chain:
                    raise broken(path, next_index, "chain_crc does not continue the part before")
                if stop == part.stop_index and chain_at_end(batch) != part.last_chain:
                    raise broken(path, stop - 1, "chain_crc is not that of the manifest")
                low = max(first_index - next_index, 0)
                high = min(stop_index, stop) - next_index
                next_index, is_first = stop, False
                yield batch if (low, high) == (0, batch.count) else batch.slice(low, high)
    except ProtocolViolation as error:
        raise broken(path, next_index, str(error)) from error
    except FileNotFoundError as error:
        raise broken(
            path, next_index, "the file is missing; its archive is not complete any more"
        ) from error
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise unreadable(path, next_index, error) from error


def _stop_of(file: pq.ParquetFile, number: int, part: Part) -> int:
    """Up to where a row group reaches, control entries behind its last row not included; after the last
    one come those."""
    groups = file.metadata.num_row_groups
    if number >= groups:
        return part.stop_index
    statistics = file.metadata.row_group(number).column(0).statistics
    return int(statistics.max) + 1


def _row_group(file: pq.ParquetFile, number: int) -> pa.RecordBatch:
    if number >= file.metadata.num_row_groups:
        return pa.RecordBatch.from_pylist([], schema=ROW_SCHEMA)
    table = file.read_row_group(number, use_threads=False).combine_chunks()
    batches = table.to_batches()
    assert len(batches) == 1, (file, number, len(batches))
    return batches[0]


def point_in_part(paths: Sequence[str], index: int) -> tuple[int, int]:
    """(position, chain_crc) of an entry, of which few columns are read. Raises DirectoryDamaged,
    StoreFailure."""
    path = paths[-1]
    try:
        with _opened(paths) as file:
            for number in range(file.metadata.num_row_groups):
                statistics = file.metadata.row_group(number).column(0).statistics
                if statistics.min <= index <= statistics.max:
                    rows = file.read_row_group(number, columns=["index", "pos", "chain_crc"])
                    at = pc.index(rows.column("index"), index).as_py()
                    if at >= 0:
                        return rows.column("pos")[at].as_py(), rows.column("chain_crc")[at].as_py()
            encoded = (file.metadata.metadata or {})[CONTROLS_KEY]
            control = dict(split_controls(base64.b64decode(encoded)))[index]
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise unreadable(path, index, error) from error
    header = unpack_header(memoryview(control)[:HEADER_BYTES])
    return header.pos, header.chain_crc
