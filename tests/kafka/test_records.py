"""Produced record batches: whole ones come apart as they were made, and nothing else gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from quorumlog.kafka.records import HEADER_BYTES, ProducedBatch, RecordsRefused, split_records
from tests.kafka.batches import made_batch

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)
PRODUCERS = st.just((-1, -1, -1)) | st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
)
MOST = 1 << 20


def split(data: bytes) -> list[ProducedBatch]:
    return split_records(data, most_bytes=MOST)


def refusal(data: bytes) -> ErrorCode:
    with pytest.raises(RecordsRefused) as raised:
        split(data)
    return raised.value.code


@given(
    st.lists(
        st.tuples(VALUES, PRODUCERS, st.integers(0, 4), st.integers(-1, 2**62)), min_size=1, max_size=4
    )
)
def test_what_producers_make_comes_apart_as_it_was_made(
    made: list[tuple[list[bytes], tuple[int, int, int], int, int]],
) -> None:
    batches = [
        made_batch(values, producer=producer, attributes=compression, timestamp=timestamp)
        for values, producer, compression, timestamp in made
    ]
    found = split(b"".join(batches))
    assert [bytes(each.data) for each in found] == batches
    assert [
        (each.record_count, each.producer_id, each.producer_epoch, each.base_sequence) for each in found
    ] == [(len(values), *producer) for values, producer, _, _ in made]
    assert [(each.first_timestamp, each.max_timestamp) for each in found] == [
        (timestamp, timestamp + len(values) - 1) for values, _, _, timestamp in made
    ]


@given(VALUES, st.data())
def test_a_changed_bit_of_what_the_crc_covers_is_noticed(
    values: list[bytes], data: st.DataObject
) -> None:
    batch = bytearray(made_batch(values))
    position = data.draw(st.integers(17, len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    assert refusal(bytes(batch)) is ErrorCode.corrupt_message


@given(VALUES, st.data())
def test_a_batch_that_is_cut_is_refused(values: list[bytes], data: st.DataObject) -> None:
    batch = made_batch(values)
    cut = batch[: data.draw(st.integers(0, len(batch) - 1))]
    is_header_whole = len(cut) >= HEADER_BYTES
    assert refusal(cut) is (ErrorCode.corrupt_message if is_header_whole else ErrorCode.invalid_record)
    assert refusal(batch + cut) if cut else split(batch + cut)


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_a_code(garbage: bytes) -> None:
    assert refusal(garbage) is not ErrorCode.none


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (made_batch([b"a"], magic=1), ErrorCode.unsupported_for_message_format),
        (made_batch([b"a"], magic=0), ErrorCode.unsupported_for_message_format),
        (made_batch([b"a"], magic=3), ErrorCode.invalid_record),
        (made_batch([b"a"], attributes=0x10), ErrorCode.invalid_txn_state),
        (made_batch([b"a"], attributes=0x30), ErrorCode.invalid_txn_state),
        (made_batch([b"a"], attributes=0x20), ErrorCode.invalid_record),
        (made_batch([b"a"], attributes=0x40), ErrorCode.invalid_record),
        (made_batch([b"a"], attributes=-0x8000), ErrorCode.invalid_record),
        (made_batch([b"a"], attributes=0x08), ErrorCode.invalid_timestamp),
        (made_batch([b"a"], attributes=5), ErrorCode.unsupported_compression_type),
        (made_batch([b"a"], base_offset=1), ErrorCode.invalid_record),
        (made_batch([]), ErrorCode.invalid_record),
        (made_batch([b"a"], record_count=2), ErrorCode.invalid_record),
        (made_batch([b"a"], record_count=2, last_delta=1), ErrorCode.invalid_record),
        (made_batch([b"a"], record_count=-1, last_delta=-2), ErrorCode.invalid_record),
        (made_batch([b"a"], producer=(5, -1, 0)), ErrorCode.invalid_record),
        (made_batch([b"a"], producer=(5, 0, -1)), ErrorCode.invalid_record),
        (made_batch([b"a"], producer=(-2, 0, 0)), ErrorCode.invalid_record),
        (made_batch([b"a" * MOST]), ErrorCode.message_too_large),
    ],
)
def test_refusals(batch: bytes, code: ErrorCode) -> None:
    assert refusal(batch) is code
    assert refusal(made_batch([b"before"]) + batch) is code, "all of it or nothing"
