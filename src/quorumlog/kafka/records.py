"""A producer's data for one partition: a record batch of format v2.

A batch is checked as a whole: one unpack of its header and one CRC. Its records are neither unpacked nor
decompressed.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

# Base offset and leader epoch stand before the CRC and are not covered by it: a broker sets them.
_HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
"""Bytes of a batch before its first record."""
_CHECKED_FROM = 21
_LENGTH_FROM = 12
_LEAST_RECORD_BYTES = 7

_COMPRESSION = 0x07
_MOST_COMPRESSION = 4  # none, gzip, snappy, lz4, zstd
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_KNOWN = _COMPRESSION | _LOG_APPEND_TIME | _TRANSACTIONAL

NO_PRODUCER = -1
"""Producer id of a batch whose producer is not idempotent."""


class RecordsRefused(Exception):
    """The batch is not appended. `code`: Kafka's error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class KafkaRecordBatch(NamedTuple):
    """A valid batch. Timestamps are milliseconds since 1970, -1 if unset."""

    data: memoryview
    """The whole batch as received, header included."""
    record_count: int
    """Number of records and offsets, at least 1."""
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    """NO_PRODUCER: epoch and sequence have no meaning."""
    producer_epoch: int
    base_sequence: int
    """Sequence of the first record; the next batch's is base_sequence + record_count, modulo 2^31."""


def check_records(data: bytes | memoryview, *, most_bytes: int) -> KafkaRecordBatch:
    """Check one Produce request's data for one partition: one batch of `most_bytes` at most. Raises
    RecordsRefused."""
    batch = memoryview(data)
    if len(batch) < HEADER_BYTES:
        raise _invalid(f"{len(batch)} bytes are not a record batch" if batch else "no records")
    base, length, _, magic, crc, *covered = _HEADER.unpack_from(batch)
    if magic in (0, 1):
        raise RecordsRefused(
            ErrorCode.unsupported_for_message_format,
            f"message format {magic}: use a producer that writes record batches (format 2)",
        )
    if magic != 2:
        raise _invalid(f"message format {magic} is not known")
    if base:
        raise _invalid(f"a base offset of {base}: producers send 0, and the broker sets it")
    if _LENGTH_FROM + length != len(batch):
        raise _invalid(f"not one batch: it says {_LENGTH_FROM + length} bytes of {len(batch)}")
    if len(batch) > most_bytes:
        raise RecordsRefused(
            ErrorCode.message_too_large, f"a batch of {len(batch)} bytes; the limit is {most_bytes}"
        )
    if crc32c(batch[_CHECKED_FROM:]) != crc:
        raise RecordsRefused(ErrorCode.corrupt_message, "the batch fails its CRC")
    return _checked(batch, *covered)


def _checked(
    batch: memoryview,
    attributes: int,
    last_delta: int,
    first_timestamp: int,
    max_timestamp: int,
    producer: int,
    epoch: int,
    sequence: int,
    count: int,
) -> KafkaRecordBatch:
    if attributes & _TRANSACTIONAL:
        raise RecordsRefused(ErrorCode.invalid_txn_state, "transactions are not supported")
    if attributes & _LOG_APPEND_TIME:
        raise RecordsRefused(
            ErrorCode.invalid_timestamp, "a producer must not set the log's append time"
        )
    if attributes & ~_KNOWN:
        raise _invalid(f"attributes {attributes:#x}: clients cannot send control batches")
    compression = attributes & _COMPRESSION
    if compression > _MOST_COMPRESSION:
        raise RecordsRefused(
            ErrorCode.unsupported_compression_type, f"compression type {compression} is not known"
        )
    if count < 1 or last_delta != count - 1:
        raise _invalid(f"{count} records whose last offset is {last_delta} after the first")
    if not compression and count * _LEAST_RECORD_BYTES > len(batch) - HEADER_BYTES:
        raise _invalid(f"{count} records in a batch of {len(batch)} bytes")
    if producer < NO_PRODUCER or (producer >= 0 and (epoch < 0 or sequence < 0)):
        raise _invalid(f"producer id {producer} with epoch {epoch} and sequence {sequence}")
    return KafkaRecordBatch(batch, count, first_timestamp, max_timestamp, producer, epoch, sequence)


def _invalid(message: str) -> RecordsRefused:
    return RecordsRefused(ErrorCode.invalid_record, message)
