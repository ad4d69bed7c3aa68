"""The walk over one data segment, and the scalar twin of the bulk digests."""

from __future__ import annotations

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.header_array import HEADER_DTYPE, digests_of, words_of
from quorumlog.store.segments import (
    BLANK_BYTES,
    INDEX_DTYPE,
    SegmentScan,
    blank_record,
    index_units_of,
    scan_segment,
)

SEGMENT = 1024
BODIES = [b"a" * 10, b"", b"c" * 100]


def stamped(first_index: int = 0, base: int = 0, term: int = 1, chain: int = 0) -> EntryBatch:
    batch = EntryBatch.from_bodies(BODIES)
    batch.stamp(first_index, term, batch.starts + base, chain)
    return batch


def segment_of(batch: EntryBatch, tail: bytes = b"") -> bytearray:
    data = bytearray(SEGMENT)
    data[: batch.total_bytes] = batch.buffer
    data[batch.total_bytes : batch.total_bytes + len(tail)] = tail
    return data


def scan(data: bytearray, **options: object) -> SegmentScan:
    arguments: dict[str, object] = {
        "expected_index": 0,
        "previous_term": -1,
        "previous_chain": 0,
        "check_bodies": True,
    }
    return scan_segment(memoryview(data), 0, 0, **(arguments | options))  # type: ignore[arg-type]


def test_entries_then_zeros() -> None:
    batch = stamped()
    found = scan(segment_of(batch))
    assert found.sizes.tolist() == batch.sizes.tolist()
    assert found.positions.tolist() == batch.starts.tolist()
    assert (found.end_position, found.stop, found.problem) == (batch.total_bytes, "zero", "")


def test_blank_must_cover_the_rest() -> None:
    batch = stamped()
    rest = SEGMENT - batch.total_bytes
    assert scan(segment_of(batch, blank_record(rest))).stop == "blank"
    found = scan(segment_of(batch, blank_record(rest - 1)))
    assert found.stop == "bad"
    assert str(rest - 1) in found.problem


def test_blank_of_exactly_eight_bytes() -> None:
    batch = EntryBatch.from_bodies([bytes(SEGMENT - HEADER_BYTES - BLANK_BYTES)])
    batch.stamp(0, 1, batch.starts, 0)
    assert scan(segment_of(batch, blank_record(BLANK_BYTES))).stop == "blank"
    assert scan(segment_of(batch)).stop == "zero"


def test_any_flipped_byte_of_an_entry_is_found() -> None:
    batch = stamped()
    last = int(batch.starts[-1])
    for at in range(batch.total_bytes):
        data = segment_of(batch)
        data[at] ^= 0x40
        found = scan(data)
        assert found.stop in ("bad", "full", "zero"), at
        assert found.end_position <= min(at, last), at


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"expected_index": 1}, "index does not follow"),
        ({"previous_term": 2}, "term falls"),
        ({"previous_chain": 7}, "chain_crc does not match"),
    ],
)
def test_what_does_not_continue_the_log(options: dict[str, int], problem: str) -> None:
    found = scan(segment_of(stamped()), **options)
    assert found.stop == "bad"
    assert problem in found.problem
    assert len(found.sizes) == 0


def test_an_unchecked_directory_is_not_asked_for_digests() -> None:
    batch = stamped()
    headers = batch.headers()
    headers["chain_crc"] = 0
    headers["body_crc"] = 0
    batch._put_headers(headers)
    assert scan(segment_of(batch)).stop == "bad"
    found = scan(segment_of(batch), previous_chain=None)
    assert found.stop == "zero"
    assert len(found.sizes) == len(BODIES)


def test_stop_position_bounds_the_entries_looked_at() -> None:
    batch = stamped()
    found = scan(segment_of(batch), stop_position=int(batch.starts[1]))
    assert (len(found.sizes), found.stop) == (1, "full")
    found = scan(segment_of(batch), stop_position=int(batch.starts[1]) + 1)
    assert (len(found.sizes), found.stop) == (2, "full")


def test_a_prefix_of_a_segment_ends_with_its_last_whole_entry() -> None:
    batch = stamped()
    for length in range(batch.total_bytes + 1):
        found = scan(segment_of(batch)[:length], segment_bytes=SEGMENT)
        whole = int((batch.starts + batch.sizes <= length).sum())
        assert (len(found.sizes), found.stop) == (whole, "full"), length


def test_the_header_twins_agree() -> None:
    random = np.random.default_rng(11)
    for _ in range(200):
        data = random.bytes(HEADER_BYTES)
        # magic, size and channel are never negative in an entry that is asked for its digest
        data = bytes([0]) + data[1:4] + bytes([0]) + data[5:32] + bytes(4) + data[36:]
        bulk = np.frombuffer(data, HEADER_DTYPE)
        header = unpack_header(data)
        assert bulk[0].item() == tuple(getattr(header, name) for name in HEADER_DTYPE.names or ())
        assert header.digest == int(digests_of(words_of(bulk))[0])


def test_index_units_take_the_real_magic() -> None:
    batch = EntryBatch.concatenate([stamped(), EntryBatch.noop()])
    headers = batch.headers()
    units = index_units_of(headers, batch.starts)
    assert units.dtype == INDEX_DTYPE
    assert units["magic"].tolist() == [1, 1, 1, 2]
    assert units["position"].tolist() == batch.starts.tolist()
