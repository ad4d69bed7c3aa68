"""Produced record batches: what producers make is taken, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from quorumlog.kafka.records import KafkaRecordBatch, RecordsRefused, check_records
from tests.kafka.batches import made_batch

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)
PRODUCERS = st.just((-1, -1, -1)) | st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
)
MOST = 1 << 20


def checked(data: bytes) -> KafkaRecordBatch:
    return check_records(data, most_bytes=MOST)


def refusal(data: bytes) -> ErrorCode:
    with pytest.raises(RecordsRefused) as raised:
        checked(data)
    return raised.value.code


@given(VALUES, PRODUCERS, st.integers(0, 4), st.integers(-1, 2**62))
def test_what_a_producer_makes_is_taken_as_it_is(
    values: list[bytes], producer: tuple[int, int, int], compression: int, timestamp: int
) -> None:
    batch = made_batch(values, producer=producer, attributes=compression, timestamp=timestamp)
    found = checked(batch)
    assert found == KafkaRecordBatch(
        memoryview(batch), len(values), timestamp, timestamp + len(values) - 1, *producer
    )


@given(VALUES, st.data())
def test_a_changed_bit_of_what_the_crc_covers_is_noticed(
    values: list[bytes], data: st.DataObject
) -> None:
    batch = bytearray(made_batch(values))
    position = data.draw(st.integers(17, len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    assert refusal(bytes(batch)) is ErrorCode.corrupt_message


@given(VALUES, st.data())
def test_what_is_not_one_whole_batch_is_refused(values: list[bytes], data: st.DataObject) -> None:
    batch = made_batch(values)
    cut = batch[: data.draw(st.integers(0, len(batch) - 1))]
    assert refusal(cut) is ErrorCode.invalid_record
    assert refusal(batch + (cut or b"0")) is ErrorCode.invalid_record
    assert refusal(batch + batch) is ErrorCode.invalid_record


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
