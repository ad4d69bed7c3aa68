"""Record batches as a producer makes them."""

from __future__ import annotations

from struct import pack

from crc32c import crc32c


def zigzag(number: int) -> bytes:
    """The varint of a record's fields."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def made_batch(
    values: list[bytes],
    *,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp: int = 1_000,
    magic: int = 2,
    record_count: int | None = None,
    last_delta: int | None = None,
    base_offset: int = 0,
) -> bytes:
    """`producer`: id, epoch, base sequence. Records without key and headers, one a millisecond."""
    records = b""
    for delta, value in enumerate(values):
        record = b"\0" + zigzag(delta) + zigzag(delta) + zigzag(-1) + zigzag(len(value)) + value + b"\0"
        records += zigzag(len(record)) + record
    count = len(values) if record_count is None else record_count
    checked = pack(
        ">hiqqqhii",
        attributes,
        len(values) - 1 if last_delta is None else last_delta,
        timestamp,
        timestamp + len(values) - 1,
        *producer,
        count,
    )
    checked += records
    return pack(">qiibI", base_offset, 9 + len(checked), -1, magic, crc32c(checked)) + checked
