"""What a record's queue and index know of it does not depend on how many come at once."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from quorumlog.broker.message import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    KEYS,
    STORE_HOST_V6,
    TAGS,
    TRANSACTION_BITS,
    UNIQ_KEY,
    V6_MORE_BYTES,
    Message,
    crc_of,
    encode_records,
)
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store import index
from quorumlog.broker.store.index import IndexFile
from quorumlog.store.memory_disk import MemoryDisk

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
NAMES = st.sampled_from([KEYS, TAGS, UNIQ_KEY, "DELAY", "", "KEY"])
BYTES = st.one_of(TEXTS.map(str.encode), st.binary(max_size=8))
PAIRS = st.lists(st.tuples(NAMES, st.sampled_from([b"\x01", b"", b"\x01\x01"]), BYTES), max_size=5)


def record_of(topic: str, properties: bytes, sys_flag: int) -> bytes:
    (record, (size,)) = encode_records([Message(topic, b"body")], 0, 0)
    head = bytes(record[:size])
    at = head.rindex(topic.encode()) + len(topic.encode())
    whole = bytearray(head[:at] + len(properties).to_bytes(2, "big") + properties)
    whole[:4] = len(whole).to_bytes(4, "big")
    whole[36:40] = sys_flag.to_bytes(4, "big")
    assert whole[8:12] == crc_of(b"body").to_bytes(4, "big")
    return bytes(whole)


RECORDS = st.builds(
    record_of,
    st.sampled_from(["orders", "a-1", "%RETRY%g", "w" * 130]),
    PAIRS.map(lambda pairs: b"\x02".join(name.encode() + end + value for name, end, value in pairs)),
    st.sampled_from([0, 0x4, 0x8, TRANSACTION_BITS]),
)


@given(st.lists(RECORDS, min_size=2, max_size=4))
def test_a_record_alone_has_the_keys_and_the_tags_that_it_has_among_others(records: list[bytes]) -> None:
    together = RecordBatch.contiguous(b"".join(records), [len(each) for each in records])
    assert together.columns.good.all()
    keys = together.index_keys
    for row, record in enumerate(records):
        alone = RecordBatch.contiguous(record, [len(record)])
        assert alone.tags_codes.tolist() == [together.tags_codes[row]]
        assert alone.index_keys.hashes.tolist() == keys.hashes[keys.rows == row].tolist()
        assert not np.any(alone.index_keys.rows)


@given(
    RECORDS,
    st.lists(st.tuples(st.integers(0, 130), st.integers(0, 255)), max_size=3),
    st.data(),
)
def test_a_record_alone_has_the_shape_that_it_has_among_others(
    record: bytes, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    changed = bytearray(record)
    for flag in data.draw(st.sets(st.sampled_from([BORN_HOST_V6, STORE_HOST_V6]))):
        changed[39] |= flag
        changed[BORN_HOST_AT:BORN_HOST_AT] = bytes(V6_MORE_BYTES)
        changed[:4] = len(changed).to_bytes(4, "big")
    for at, byte in changes:
        changed[at % len(changed)] = byte
    changed = changed[: data.draw(st.integers(0, len(changed)))] if data.draw(st.booleans()) else changed
    if data.draw(st.booleans()):
        changed[:4] = len(changed).to_bytes(4, "big")
    alone = RecordBatch.contiguous(changed, [len(changed)])
    together = RecordBatch.contiguous(changed + record, [len(changed), len(record)])
    event("good" if together.columns.good[0] else "not")
    assert (alone.lone is not None) == bool(together.columns.good[0])
    if alone.lone is None:
        assert not alone.are_good
        return
    columns = together.columns
    assert alone.queues[0][0] == (together.topic_of(0), columns.queue_ids[0])
    assert alone.store_time_ms(0) == together.store_time_ms(0)
    assert alone.lie_at(columns.physical_offsets[:1]) and not alone.lie_at(np.array([-7]))
    for batch in (alone, together):
        rows = np.arange(len(batch))
        batch.stamp(5 + rows, 1000 + rows, 123_456, b"host8888")
    assert bytes(alone.buffer) == bytes(together.buffer[: len(changed)])


KEYS_PUT = st.lists(st.integers(0, 12), min_size=1, max_size=5)


@given(st.lists(st.tuples(KEYS_PUT, st.integers(0, 5000)), min_size=1, max_size=6), st.integers(0, 60))
def test_few_keys_are_written_as_many_are(puts: list[tuple[list[int], int]], stale: int) -> None:
    """`stale`: an entry that a slot names, and that there is none of, as a crash may leave it."""
    written = []
    for few in (0, 4):
        disk = MemoryDisk()
        disk.make_directory("index")
        file = IndexFile.create(disk, "index/1", 7, 100)
        file._slot_table()[3] = stale
        position = 0
        with patch.object(index, "_FEW_KEYS", few):
            for hashes, time_ms in puts:
                places = np.arange(position, position + len(hashes))
                file.put(np.array(hashes), places, np.full(len(hashes), time_ms))
                position += len(hashes)
        file.flush()
        written.append(disk.open("index/1").pread(5000, 0))
    assert written[0] == written[1]
