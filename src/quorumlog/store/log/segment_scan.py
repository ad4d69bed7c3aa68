"""Reading a data segment record by record, and the index units that belong to it.

A data segment is a run of entries (layout in `quorumlog.batch`), then either zeros (the log ends
here) or one blank record that fills the rest of the file (the log goes on in the next one):

    entry  entry  entry  FF FF FF FF | length of the rest (4) | zeros ...

An index unit, for entry i at byte `i * 32` of the index (docs/formats.md, index file; big-endian):

    offset  bytes  field
         0      4  magic
         4      8  position   of the entry's first byte in the log
        12      4  size       header and body
        16      8  index
        24      8  term

This is the cold path: a start, `inspect`, `verify`, `read --path`. Only the hop from one size to the
next is Python; all that can be checked in bulk is checked in bulk afterwards.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.entry import ENTRY_KINDS
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.header_array import HEADER_DTYPE, HeaderArray, Int64Array, first_wrong

INDEX_DTYPE = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
INDEX_UNIT_BYTES = 32
assert INDEX_DTYPE.itemsize == INDEX_UNIT_BYTES

IndexArray = npt.NDArray[Any]

BLANK_MAGIC = -1
BLANK_BYTES = 8
"""What every segment keeps free behind its last entry, so that a blank record always fits."""

_SHAPE = struct.Struct(">ii")


class SegmentScan(NamedTuple):
    """The good entries that a scan found, and why it stopped behind them."""

    sizes: Int64Array
    positions: Int64Array
    """Byte position of each entry in the log."""
    headers: HeaderArray
    """A copy, `HEADER_DTYPE`."""
    end_position: int
    """Just behind the last good entry; where the next record was looked for."""
    stop: Literal["zero", "blank", "full", "bad"]
    """`zero`: the log ends here. `blank`: it goes on in the next segment. `full`: `stop_position` or
    the end of the data was reached. `bad`: something else lies here, see `problem`."""
    problem: str


def blank_record(rest_bytes: int) -> bytes:
    """The 8 bytes that end a segment with `rest_bytes` left (docs/formats.md, blank)."""
    assert rest_bytes >= BLANK_BYTES, rest_bytes
    return _SHAPE.pack(BLANK_MAGIC, rest_bytes)


def index_units_of(headers: HeaderArray, positions: npt.ArrayLike) -> IndexArray:
    """Shape (count,), `INDEX_DTYPE`: the unit of each entry; `positions` are physical."""
    units = np.empty(len(headers), INDEX_DTYPE)
    units["magic"] = headers["magic"]
    units["position"] = positions
    units["size"] = headers["size"]
    units["index"] = headers["index"]
    units["term"] = headers["term"]
    return units


def gather_headers(data: memoryview, offsets: Int64Array) -> HeaderArray:
    """Copies of the 48 bytes at each offset; every offset + 48 must lie inside `data`."""
    if len(offsets) == 0:
        return np.empty(0, HEADER_DTYPE)
    assert int(offsets.min()) >= 0, int(offsets.min())
    assert int(offsets.max()) + HEADER_BYTES <= len(data), (int(offsets.max()), len(data))
    window = np.ndarray((len(data) - HEADER_BYTES + 1,), f"V{HEADER_BYTES}", data, 0, (1,))
    gathered: HeaderArray = window[offsets].view(HEADER_DTYPE)
    return gathered


def scan_segment(
    data: memoryview,
    base_position: int,
    start_position: int,
    *,
    expected_index: int,
    previous_term: int,
    previous_chain: int | None,
    check_bodies: bool,
    stop_position: int | None = None,
    segment_bytes: int | None = None,
) -> SegmentScan:
    """Walk entries from `start_position` on; stop at the first thing that is not the next good one.

    `data` begins at byte `base_position` of the log and is a segment, or a prefix of one of
    `segment_bytes`. `previous_chain` None: digests are not looked at. An entry at or behind
    `stop_position` is not examined.
    """
    positions, stop, problem, end_position = _walk(
        data,
        base_position,
        start_position,
        base_position + (len(data) if segment_bytes is None else segment_bytes),
        stop_position,
    )
    offsets = np.array(positions, np.int64) - base_position
    headers = gather_headers(data, offsets)
    good, why = first_wrong(
        headers, headers["size"], offsets + base_position, expected_index, previous_term, previous_chain
    )
    if check_bodies and previous_chain is not None:
        wrong_body = _first_wrong_body(data, offsets[:good], headers)
        if wrong_body < good:
            good, why = wrong_body, "body_crc does not match"
    if good < len(headers):
        end_position = int(offsets[good]) + base_position
        stop, problem = "bad", f"{why} at {end_position} (index {expected_index + good})"
    return SegmentScan(
        headers["size"][:good].astype(np.int64),
        offsets[:good] + base_position,
        headers[:good],
        end_position,
        stop,
        problem,
    )


def _walk(
    data: memoryview, base: int, start: int, segment_end: int, stop_position: int | None
) -> tuple[list[int], Literal["zero", "blank", "full", "bad"], str, int]:
    """Hop from size to size: (positions of records shaped like entries, stop, problem, end)."""
    data_end = base + len(data)
    assert base <= start <= data_end <= segment_end, (base, start, data_end, segment_end)
    limit = data_end if stop_position is None else min(stop_position, data_end)
    unpack_from = _SHAPE.unpack_from
    positions: list[int] = []
    position = start
    while position < limit:
        if position + BLANK_BYTES > data_end:
            return positions, "full", "", position
        magic, size = unpack_from(data, position - base)
        if magic in ENTRY_KINDS:
            if size < HEADER_BYTES:
                return positions, "bad", f"an entry of {size} bytes at {position}", position
            # The rolling rule leaves room for a blank behind every entry.
            if position + size + BLANK_BYTES > segment_end:
                return positions, "bad", f"an entry at {position} is longer than its segment", position
            if position + size > data_end:
                return positions, "full", "", position
            positions.append(position)
            position += size
        elif magic == 0 and size == 0:
            return positions, "zero", "", position
        elif magic == BLANK_MAGIC:
            if position + size == segment_end:
                return positions, "blank", "", position
            return (
                positions,
                "bad",
                f"a blank record at {position} covers {size} bytes of {segment_end - position}",
                position,
            )
        else:
            return positions, "bad", f"no record at {position}: magic {magic}, size {size}", position
    return positions, "full", "", position


def _first_wrong_body(data: memoryview, offsets: Int64Array, headers: HeaderArray) -> int:
    starts = (offsets + HEADER_BYTES).tolist()
    stops = (offsets + headers["size"][: len(offsets)].astype(np.int64)).tolist()
    expected = headers["body_crc"][: len(offsets)].tolist()
    for i, (start, stop, body_crc) in enumerate(zip(starts, stops, expected, strict=True)):
        if crc32(data[start:stop]) != body_crc:
            return i
    return len(offsets)
