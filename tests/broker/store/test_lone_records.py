"""What a record's queue and index know of it does not depend on how many come at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.message import (
    KEYS,
    MAGIC,
    TAGS,
    TRANSACTION_BITS,
    UNIQ_KEY,
    Message,
    crc_of,
    encode_records,
)
from quorumlog.broker.record_batch import RecordBatch

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
    assert whole[4:8] == MAGIC.to_bytes(4, "big")
    assert whole[8:12] == crc_of(b"body").to_bytes(4, "big")
    return bytes(whole)


RECORDS = st.builds(
    record_of,
    st.sampled_from(["orders", "a-1", "%RETRY%g"]),
    PAIRS.map(lambda pairs: b"\x02".join(name.encode() + end + value for name, end, value in pairs)),
    st.sampled_from([0, 0x4, 0x8, TRANSACTION_BITS]),
)


@given(st.lists(RECORDS, min_size=2, max_size=4))
def test_a_record_alone_has_the_keys_and_the_tags_that_it_has_among_others(records: list[bytes]) -> None:
    together = RecordBatch.contiguous(b"".join(records), [len(each) for each in records])
    assert together.columns.good.all()
    keys = together.index_keys()
    for row, record in enumerate(records):
        alone = RecordBatch.contiguous(record, [len(record)])
        assert alone.tags_codes.tolist() == [together.tags_codes[row]]
        assert alone.index_keys().hashes.tolist() == keys.hashes[keys.rows == row].tolist()
        assert not np.any(alone.index_keys().rows)
