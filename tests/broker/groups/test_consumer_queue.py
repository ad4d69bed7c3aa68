"""What a consumer takes, finishes and commits of a queue, and what becomes of a message that fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.client.async_consumer import (
    MOST_CAUSE_BYTES,
    ConsumerQueue,
    again_of,
    revived,
    take_next,
)
from quorumlog.broker.group_commands import MOST_RETRIES
from quorumlog.broker.message import StoredMessage
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.errors import BadRequest


def message(offset: int = 0, *, tags: str = "", times: int = 0, **properties: str) -> StoredMessage:
    born = "127.0.0.1:1000"
    return StoredMessage(
        *(
            "orders",
            0,
            offset,
            100 * offset,
            100,
            b"body",
            tags,
            ("4711",),
            {"KEYS": "4711"} | properties,
        ),
        *(1_000, 2_000, born, born, 0, 0, times, 0, "AB" * 16),
    )


def queue(first: int = 0, wanted: frozenset[str] = frozenset()) -> ConsumerQueue:
    return ConsumerQueue("orders", 0, wanted, first, first, first)


@given(st.data())
def test_all_below_the_lowest_that_is_not_finished_is_done(data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.booleans(), max_size=12), "tags")
    reads = queue(5, frozenset("a"))
    taken: list[StoredMessage] = []
    unfinished = {5 + at for at, is_wanted in enumerate(wanted) if is_wanted}
    stop = 5 + len(wanted)
    reads.came([message(5 + at, tags="ab"[not each]) for at, each in enumerate(wanted)], stop)
    while unfinished:
        assert reads.done_offset == min(unfinished)
        if reads.fetched and (not taken or data.draw(st.booleans(), "take")):
            taken.append(reads.take())
            if data.draw(st.booleans(), "give back"):
                reads.give_back(taken.pop())
            if data.draw(st.booleans(), "drop"):
                reads.drop_fetched()
                begin = reads.next_offset
                came = [message(5 + at, tags="ab"[not each]) for at, each in enumerate(wanted)]
                reads.came(came[begin - 5 :], stop)
        elif taken:
            done = taken.pop(data.draw(st.integers(0, len(taken) - 1), "finish"))
            unfinished.discard(done.queue_offset)
            assert reads.finish(done)
            before = reads.done_offset
            assert not reads.finish(done), "a late finish says nothing"
            assert reads.done_offset == before
    assert (reads.done_offset, reads.fetched_bytes) == (stop, 0)


def test_queues_take_turns_and_in_order_one_message_of_each_is_in_hand() -> None:
    one, two = queue(), ConsumerQueue("orders", 1, frozenset(), 0, 0, 0)
    for each in (one, two):
        each.came([message(offset) for offset in range(3)], 3)
    queues = {each.key: each for each in (one, two)}
    taken = [take_next(queues, in_order=True) for _ in range(3)]
    assert [None if each is None else (each[0].queue_id, each[1].queue_offset) for each in taken] == [
        *((0, 0), (1, 0)),
        None,
    ]
    one.finish(message(0))
    two.is_asked_for = True
    two.finish(message(0))
    found = take_next(queues, in_order=True)
    assert found is not None
    assert (found[0], found[1].queue_offset) == (one, 1)
    assert take_next(queues, in_order=True) is None, "somebody waits for the other queue"
    assert take_next(queues, in_order=False) is not None
    anew = ConsumerQueue("orders", 0, frozenset(), 0, 0, 0, waits_for=one)
    anew.came([message(0)], 1)
    assert not anew.can_take, "something of it is in hand still"
    for each in list(one.in_hand.values()):
        one.finish(each)
    assert anew.can_take


def stored(encoded_buffer: bytearray, sizes: list[int]) -> StoredMessage:
    (found,) = RecordBatch.contiguous(encoded_buffer, sizes).messages()
    return found


def test_a_message_comes_again_later_each_time_and_then_is_a_dead_letter_with_its_cause() -> None:
    for times in range(MOST_RETRIES):
        again = again_of(message(times=times), "billing", most_retries=MOST_RETRIES, cause="?")
        found = stored(again.encoded.buffer, again.encoded.sizes)
        assert (again.encoded.topic, found.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", times + 1)
        assert again.encoded.queue_id == min(2 + times, 17)
        assert found.properties["REAL_TOPIC"] == "%RETRY%billing"
        assert "DLQ_CAUSE" not in found.properties
    cause = "ValueError: \x01\x02\n" + "é" * MOST_CAUSE_BYTES
    last = again_of(message(times=16), "billing", most_retries=MOST_RETRIES, cause=cause)
    dead = stored(last.encoded.buffer, last.encoded.sizes)
    assert (dead.topic, dead.reconsume_times) == ("%DLQ%billing", 17)
    assert dead.properties["DLQ_ATTEMPT"] == "17"
    assert dead.properties["DLQ_CAUSE"].startswith("ValueError:    é")
    assert len(dead.properties["DLQ_CAUSE"].encode()) <= MOST_CAUSE_BYTES
    assert dead.properties["RETRY_TOPIC"] == "orders"
    back = revived(dead, "billing")
    alive = stored(back.buffer, back.sizes)
    assert (alive.topic, alive.reconsume_times, alive.body) == ("%RETRY%billing", 0, b"body")
    assert alive.properties == {
        "KEYS": "4711",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "AB" * 16,
    }


def test_a_message_without_room_for_a_retry_is_a_dead_letter_at_once() -> None:
    again = again_of(message(a="x" * 32_700), "billing", most_retries=16, cause="?")
    assert again.encoded.topic == "%DLQ%billing"
    assert "above 32767" in again.problem
    with pytest.raises(BadRequest, match="1 to 18"):
        again_of(message(), "billing", most_retries=16, delay_level=19)
