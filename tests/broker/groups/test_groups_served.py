"""Topics, groups, delays and sessions of three brokers in one process: what clients see."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from quorumlog.broker import Message, connect
from quorumlog.broker.client.async_broker_admin import AsyncBrokerAdmin
from quorumlog.broker.client.async_consumer import AsyncConsumer
from quorumlog.broker.client.async_producer import AsyncProducer
from quorumlog.broker.client.blocking import BrokerAdmin, Consumer, Producer
from quorumlog.broker.dledger.dledger_broker import SMALL_INDEX, LocalBrokers
from quorumlog.broker.errors import (
    GroupInUse,
    StaleGeneration,
    TopicExists,
    TopicNotPermitted,
    UnknownConsumerGroup,
    UnknownTopic,
)
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.message import (
    MAX_PROPERTIES_BYTES,
    RETRY_PROPERTIES_BYTES,
    StoredMessage,
)
from quorumlog.errors import BadRequest, ProducerFenced

QUICK_LEVELS = "1s 1s " + "1s " * 16
OPTIONS = GroupOptions(member_timeout_ms=3_000)
CONFIG = replace(SMALL_INDEX, message_delay_level=QUICK_LEVELS.strip())


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with LocalBrokers(config=CONFIG, groups=lambda member_id: GroupService(OPTIONS)) as brokers:
        yield brokers


def test_two_members_share_a_topic_through_the_end_of_the_master(brokers: LocalBrokers) -> None:
    asyncio.run(_share(brokers))


async def _share(brokers: LocalBrokers) -> None:
    servers = brokers.servers
    seen: list[tuple[str, str, int, bytes]] = []

    async def consume(name: str, stop: asyncio.Event) -> None:
        async with AsyncConsumer(servers, "billing", {"orders": "*"}, name=name) as consumer:
            run = asyncio.create_task(
                consumer.run(lambda m: seen.append((name, m.topic, m.queue_id, m.body)))
            )
            await stop.wait()
            run.cancel()

    async with AsyncBrokerAdmin(servers) as admin, AsyncProducer(servers, idempotent=True) as producer:
        await admin.create_topic("orders", 4)
        stops = asyncio.Event(), asyncio.Event()
        members = [asyncio.create_task(consume(n, s)) for n, s in zip("ab", stops, strict=True)]

        async def send(first: int, stop: int) -> None:
            for number in range(first, stop):
                await producer.send(Message("orders", b"%d" % number), order_key=str(number % 7))

        async def all_seen(count: int) -> None:
            async with asyncio.timeout(30):
                while len({body for *_, body in seen}) < count:
                    await asyncio.sleep(0.02)

        await send(0, 40)
        await all_seen(40)
        brokers.cluster.kill(brokers.cluster.leader())
        await send(40, 80)
        await all_seen(80)
        (group,) = await admin.groups("billing")
        assert {each.member for each in group.members} == {"a", "b"}
        assert sorted(q for each in group.members for q in each.queues if q[0] == "orders") == [
            ("orders", queue) for queue in range(4)
        ]
        stops[0].set()
        await members[0]
        await send(80, 100)
        await all_seen(100)
        stops[1].set()
        await members[1]
        lags = await admin.lag("billing")
        assert sum(lag.messages for lag in lags) == 0
        assert sum(lag.committed_offset for lag in lags if lag.topic == "orders") == 100
        for member_id in brokers.addresses.keys() - set(brokers.cluster.running):
            brokers.cluster.restart(member_id)
    by_queue: dict[int, list[int]] = {}
    for _, _, queue, body in seen:
        numbers = by_queue.setdefault(queue, [])
        if int(body) not in numbers:
            numbers.append(int(body))
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())


def test_topics_are_made_changed_and_ended(brokers: LocalBrokers) -> None:
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        with pytest.raises(UnknownTopic, match="topic create audit"):
            producer.send(Message("audit", b"?"))
        admin.create_topic("audit", 1)
        admin.create_topic("audit", 1)  # said again: it stands as it was asked for
        with pytest.raises(BadRequest, match="up to 127 bytes, not 128"):
            admin.create_topic("t" * 128, 1)
        with pytest.raises(TopicExists):
            admin.create_topic("audit", 2)
        assert producer.send(Message("audit", b"old")).queue_offset == 0
        admin.update_topic("audit", perm=4)
        with pytest.raises(TopicNotPermitted, match="takes no messages"):
            producer.send(Message("audit", b"?"))
        admin.update_topic("audit", perm=6, queues=2)
        admin.delete_topic("audit")
        with pytest.raises(UnknownTopic):
            admin.topics("audit")
        admin.create_topic("audit", 1)
        assert producer.send(Message("audit", b"new")).queue_offset == 1
        with Consumer(brokers.servers, "auditors", "audit") as consumer:
            messages = consumer.poll(wait_ms=10_000)
            assert [message.body for message in messages] == [b"new"]
            with pytest.raises(GroupInUse):
                admin.delete_group("auditors")
            consumer.commit()
        admin.delete_group("auditors")
        with pytest.raises(UnknownConsumerGroup):
            admin.lag("auditors")


def test_delayed_and_failed_messages_come_later_and_end_in_the_dlq(brokers: LocalBrokers) -> None:
    times: Counter[bytes] = Counter()
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic("jobs", 1)
        producer.send(Message("jobs", b"bad", tags="a", keys=["4711"]))
        producer.send(Message("jobs", b"later", tags="a"), delay_level=2)
        producer.send(Message("jobs", b"not wanted", tags="b"))

        def work(message: object) -> None:
            assert message.topic == "jobs"  # type: ignore[attr-defined]
            times[message.body] += 1  # type: ignore[attr-defined]
            if message.body == b"bad":  # type: ignore[attr-defined]
                raise RuntimeError("not today")

        consumer = Consumer(brokers.servers, "workers", {"jobs": "a || c"}, most_retries=1)
        with consumer:
            consumer.run(work, until=lambda: times == {b"bad": 2, b"later": 1})
        with Consumer(brokers.servers, "undertakers", "%DLQ%workers") as undertakers:
            (dead,) = undertakers.poll(wait_ms=10_000)
            assert (dead.body, dead.reconsume_times, dead.keys) == (b"bad", 2, ("4711",))
            assert dead.properties["RETRY_TOPIC"] == "jobs"
        assert sum(lag.messages for lag in admin.lag("workers")) == 0
        offsets = admin.reset("workers", "earliest")
        assert offsets == {("jobs", 0): 0}
        assert [lag.messages for lag in admin.lag("workers") if lag.topic == "jobs"] == [3]


def test_a_producer_comes_to_use_the_queues_that_its_topic_gets(
    brokers: LocalBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.client.async_producer.ROUTE_INTERVAL_S", 0.0)
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic("growing", 1)
        assert {producer.send(Message("growing", b"")).queue_id for _ in range(4)} == {0}
        admin.update_topic("growing", queues=3)
        assert {producer.send(Message("growing", b"")).queue_id for _ in range(6)} == {0, 1, 2}


def test_a_message_full_of_properties_can_be_retried_and_no_fuller_one_is_taken(
    brokers: LocalBrokers,
) -> None:
    """A retry says in properties where the message belongs: one that has no room for it would keep its
    queue waiting for ever."""
    most = MAX_PROPERTIES_BYTES - RETRY_PROPERTIES_BYTES
    topic = "t" * 120
    times: Counter[bytes] = Counter()

    def full(bytes_more: int) -> Message:
        other = len("UNIQ_KEY") + 32 + 2 + len("a") + 2
        return Message(topic, b"full", properties={"a": "x" * (most - other + bytes_more)})

    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic(topic, 1)
        with pytest.raises(BadRequest, match=f"properties of {most + 1} bytes .* limit of {most}"):
            producer.send(full(1))
        producer.send(full(0))

        def work(message: StoredMessage) -> None:
            times[message.body] += 1
            if times[message.body] == 1:
                raise RuntimeError("not today")

        with Consumer(brokers.servers, "g" * 120, topic) as consumer:
            consumer.run(work, until=lambda: times[b"full"] == 2)


def test_a_stored_message_without_room_for_a_retry_goes_to_the_dlq(
    brokers: LocalBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an old log may hold it; the messages behind it do not wait."""
    commit_log = "quorumlog.broker.dledger.dledger_broker"
    seen: list[bytes] = []
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic("old", 1)
        with monkeypatch.context() as patched:
            patched.setattr(f"{commit_log}.RETRY_PROPERTIES_BYTES", 0)
            producer.send(Message("old", b"full", properties={"a": "x" * (MAX_PROPERTIES_BYTES - 50)}))
        producer.send(Message("old", b"next"))

        def work(message: StoredMessage) -> None:
            seen.append(message.body)
            if message.body == b"full":
                raise RuntimeError("not today")

        with Consumer(brokers.servers, "readers", "old") as consumer:
            consumer.run(work, until=lambda: b"next" in seen)
        with Consumer(brokers.servers, "diggers", "%DLQ%readers") as diggers:
            (dead,) = diggers.poll(wait_ms=10_000)
        assert (dead.body, dead.reconsume_times, seen) == (b"full", 1, [b"full", b"next"])
        assert len(dead.properties["a"]) == MAX_PROPERTIES_BYTES - 50


def test_a_reset_reaches_members_that_have_messages_in_hand(brokers: LocalBrokers) -> None:
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers, idempotent=True) as producer:
        admin.create_topic("bills", 1)
        producer.send_batch([Message("bills", b"%d" % number) for number in range(5)])
        with Consumer(brokers.servers, "payers", "bills") as consumer:
            in_hand = consumer.poll(wait_ms=10_000)
            admin.reset("payers", "earliest")
            again: list[StoredMessage] = []
            while len(again) < len(in_hand):
                again += consumer.poll(wait_ms=10_000)
            assert [m.queue_offset for m in again] == [m.queue_offset for m in in_hand]
            assert consumer.commit() == [], "what came again is committed"
            assert sum(lag.messages for lag in admin.lag("payers")) == 0
            admin.reset("payers", "earliest")
            assert len(poll(consumer, 5)) == 5
            admin.reset("payers", "earliest", ["bills", "%RETRY%payers"])
            with pytest.raises(StaleGeneration, match="comes again"):
                consumer.commit()
            assert len(poll(consumer, 5)) == 5


def poll(consumer: Consumer, count: int) -> list[StoredMessage]:
    """So many messages at least."""
    messages: list[StoredMessage] = []
    while len(messages) < count:
        messages += consumer.poll(wait_ms=10_000)
    return messages


def test_a_commit_returns_the_queues_that_another_member_has_got(brokers: LocalBrokers) -> None:
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers, idempotent=True) as producer:
        admin.create_topic("shared", 4)
        for queue_id in range(4):
            producer.send_batch([Message("shared", b"%d" % n) for n in range(3)], queue_id=queue_id)
        with Consumer(brokers.servers, "sharers", "shared", name="a") as first:
            poll(first, 12)
            with Consumer(brokers.servers, "sharers", "shared", name="b") as second:
                lost = first.commit()
                again = poll(second, 6)
                assert second.commit() == []
                assert len(lost) == 2
                assert {("shared", each.queue_id) for each in again} == set(lost)
            assert sum(lag.messages for lag in admin.lag("sharers")) == 0


def test_a_session_stores_once_and_ends_the_one_before(brokers: LocalBrokers) -> None:
    with (
        BrokerAdmin(brokers.servers) as admin,
        Producer(brokers.servers, producer_id="till 7") as first,
        Producer(brokers.servers, producer_id="till 7") as second,
    ):
        admin.create_topic("receipts", 2)
        receipt = first.send_batch([Message("receipts", b"1"), Message("receipts", b"2")], queue_id=1)
        assert (receipt.queue_id, receipt.queue_offset, receipt.message_count) == (1, 0, 2)
        assert second.last_sequence() == 1
        with pytest.raises(ProducerFenced):
            first.send(Message("receipts", b"3"))
        assert second.send(Message("receipts", b"3"), queue_id=1).queue_offset == 2


def test_a_group_begins_at_the_end_or_at_a_time(brokers: LocalBrokers) -> None:
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic("news", 1)
        producer.send(Message("news", b"old"))
        # Somebody joins, reads nothing and goes: the group has begun all the same.
        with Consumer(brokers.servers, "late", "news", begin="latest"):
            pass
        producer.send(Message("news", b"new"))
        with Consumer(brokers.servers, "late", "news", begin="latest") as consumer:
            (new,) = consumer.poll(wait_ms=10_000)
            assert new.body == b"new"
        with Consumer(brokers.servers, "timed", "news", begin=new.store_time_ms) as consumer:
            messages = consumer.poll(wait_ms=10_000)
        assert messages[-1].body == b"new"
        assert all(message.store_time_ms >= new.store_time_ms for message in messages)


def test_a_topic_that_is_made_anew_with_fewer_queues_is_sent_to_again(brokers: LocalBrokers) -> None:
    """What a client knows of the old one is asked anew once it is wrong."""
    servers, message = brokers.servers, Message("renewed", b"1")
    with (
        BrokerAdmin(servers) as admin,
        Producer(servers) as plain,
        Producer(servers, idempotent=True) as once,
        connect(servers) as client,
    ):
        admin.create_topic("renewed", 8)
        senders = plain.send, once.send, client.send
        for send in senders:
            send(message)
        admin.delete_topic("renewed")
        admin.create_topic("renewed", 1)
        for send in senders:
            for _ in range(2):  # queue 0 may be the first whose turn it is: it is there still
                with suppress(UnknownTopic):
                    send(message)
            assert send(message).queue_id == 0


def test_a_consumer_outside_of_its_with_block_says_what_to_do(brokers: LocalBrokers) -> None:
    consumer = Consumer(brokers.servers, "outside", "orders")
    calls = (lambda: consumer.poll(wait_ms=1), consumer.commit, lambda: consumer.run(lambda m: None))
    try:
        for call in calls:
            with pytest.raises(BadRequest, match="inside of its `with` block only"):
                call()
    finally:
        consumer.close()
    consumer.close()
    for call in calls:
        with pytest.raises(BadRequest, match="the client is closed: create a new one"):
            call()


def test_a_client_that_was_closed_says_so(brokers: LocalBrokers) -> None:
    client = connect(brokers.servers)
    client.close()
    client.close()
    for _ in range(2):
        with pytest.raises(BadRequest, match="the client is closed: create a new one"):
            client.queues()
