"""Copies of records for another queue, made in bulk, beside a twin that makes one at a time."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from quorumlog.broker.message import Message, encode_records
from quorumlog.broker.record_batch import RecordBatch, moved_records
from tests.broker.store.store_making import records_of

WITHOUT = ("REAL", "R", "DELAY")
TARGETS = [("t", 3), ("w" * 200, 0), ("another-topic", 2**31 - 1)]
messages = st.builds(
    Message,
    topic=st.just("schedule"),
    body=st.binary(max_size=40),
    tags=st.sampled_from(("", "Größe")),
    keys=st.lists(st.sampled_from(("k", "鍵")), max_size=2).map(tuple),
    properties=st.dictionaries(
        st.sampled_from(("REAL", "R", "DELAY", "REALER", "p")), st.text("xyz R", max_size=9)
    ),
    flag=st.integers(-(2**31), 2**31 - 1),
)


def one_at_a_time(records: RecordBatch, target_of: list[int]) -> list[bytes]:
    made = []
    for row, old in zip(target_of, records.messages(), strict=True):
        topic, queue_id = TARGETS[row]
        text = "".join(f"{name}\x01{value}\x02" for name, value in old.properties.items())
        data = b"".join(
            pair + b"\x02"
            for pair in text.encode().split(b"\x02")
            if pair and pair.partition(b"\x01")[0].decode() not in WITHOUT
        )
        plain, _ = encode_records([Message(topic, old.body, flag=old.flag)], queue_id, 1_600_000_000_000)
        width = 2 if len(topic) > 127 else 1
        stop = len(plain) - 2
        whole = bytes(plain[4:stop]) + len(data).to_bytes(2, "big") + data
        assert plain[stop - len(topic) - width : stop].endswith(topic.encode())
        made.append((4 + len(whole)).to_bytes(4, "big") + whole)
    return made


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(messages, st.integers(0, 2)), min_size=1, max_size=8))
def test_copies_are_the_same_as_made_one_at_a_time(drawn: list[tuple[Message, int]]) -> None:
    records = records_of([message for message, _ in drawn], 7)
    target_of = [row for _, row in drawn]
    moved = moved_records(records, TARGETS, np.array(target_of), WITHOUT)
    assert [bytes(moved.buffer[a : a + n]) for a, n in zip(moved.starts, moved.sizes, strict=True)] == (
        one_at_a_time(records, target_of)
    )
    assert moved.columns.good.all() and moved.bodies_good().all()


def test_the_value_of_a_property_of_many_records() -> None:
    batch = [
        Message("t", b"", properties={"q": value} if value else {}) for value in ("a", "", "longer")
    ]
    assert records_of(batch).properties.texts("q", 3).tolist() == [b"a", b"", b"longer"]
    assert records_of(batch).properties.texts("none", 3).tolist() == [b"", b"", b""]
