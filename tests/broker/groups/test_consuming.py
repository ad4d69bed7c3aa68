"""How consumers work messages off: several at once, with an end to each, or by queue under a lock."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from quorumlog.broker import (
    AsyncConsumer,
    BrokerAdmin,
    Consumer,
    Message,
    Producer,
    StoredMessage,
    SuspendQueue,
)
from quorumlog.broker.dledger.dledger_broker import SMALL_INDEX, LocalBrokers
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.wire import CommitRequest, RoleRequest
from quorumlog.cli.main import app
from quorumlog.errors import BadRequest, Unreachable
from quorumlog.net.frame import Frame

OPTIONS = GroupOptions()
CONFIG = replace(SMALL_INDEX, message_delay_level="1s " * 17 + "1s")


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with LocalBrokers(config=CONFIG, groups=lambda member_id: GroupService(OPTIONS)) as brokers:
        yield brokers


def sent(brokers: LocalBrokers, topic: str, bodies: list[bytes], queues: int = 1) -> None:
    """To each queue."""
    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic(topic, queues)
        for queue_id in range(queues):
            producer.send_batch([Message(topic, body) for body in bodies], queue_id=queue_id)


def committed(brokers: LocalBrokers, group: str, topic: str) -> list[int]:
    with BrokerAdmin(brokers.servers) as admin:
        return [lag.committed_offset for lag in admin.lag(group) if lag.topic == topic]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_broker_that_answers_no_more_holds_close_up_for_one_time_out(
    brokers: LocalBrokers, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    """Or until nobody waits for that; no connection is left."""
    topic = f"hung-{gives_up}"
    sent(brokers, topic, [b"1"])
    asked: list[type[object]] = []
    closing: asyncio.Future[None]

    async def never(message: object, *_: object, **options: object) -> Frame:
        asked.append(type(message))
        if gives_up:
            closing.cancel()
        await asyncio.Event().wait()
        raise AssertionError

    async def close() -> None:
        nonlocal closing
        consumer = AsyncConsumer(brokers.servers, topic, topic, timeout_ms=5_000)
        await consumer.__aenter__()
        assert await consumer.poll(wait_ms=20_000)
        for queue, message in consumer._handed_out:
            queue.finish(message)
        consumer._timeout_s = 30 if gives_up else 0.05
        call = consumer._link.call
        monkeypatch.setattr(consumer._link, "call", never)
        closing = asyncio.ensure_future(consumer.close())
        async with asyncio.timeout(30):
            await asyncio.wait([closing])
        assert closing.cancelled() is gives_up
        with pytest.raises(Unreachable, match="the client is closed"):
            await call(RoleRequest(watches=False))

    asyncio.run(close())
    assert asked[-1] is CommitRequest, "and nothing is asked beside that"


def test_a_slow_message_holds_up_no_other_and_nothing_behind_it_is_committed(
    brokers: LocalBrokers,
) -> None:
    sent(brokers, "mixed", [b"slow", *(b"%d" % number for number in range(20))])
    asyncio.run(_mixed(brokers.servers))
    assert committed(brokers, "mixers", "mixed") == [21]


async def _mixed(servers: str) -> None:
    seen: list[bytes] = []
    go_on = asyncio.Event()
    most_at_once = at_once = 0

    async def work(message: StoredMessage) -> None:
        nonlocal at_once, most_at_once
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        if message.body == b"slow":
            await go_on.wait()
        else:
            await asyncio.sleep(0)
        seen.append(message.body)
        at_once -= 1
        if len(seen) == 20:
            (queue,) = [each for each in consumer.queues.values() if each.topic == "mixed"]
            assert (queue.done_offset, next(iter(queue.in_hand))) == (0, 0)
            go_on.set()

    async with AsyncConsumer(servers, "mixers", "mixed") as consumer:
        await consumer.run(work, threads=4, until=lambda: len(seen) == 21)
    assert seen[-1] == b"slow"
    assert most_at_once <= 4


def test_a_message_that_takes_too_long_comes_again_and_its_late_end_says_nothing(
    brokers: LocalBrokers,
) -> None:
    sent(brokers, "hangs", [b"hangs", b"next"])
    times: Counter[bytes] = Counter()
    go_on = threading.Event()
    with Consumer(brokers.servers, "hangers", "hangs", most_retries=0) as consumer:

        def work(message: StoredMessage) -> None:
            times[message.body] += 1
            if message.body == b"hangs":
                assert go_on.wait(60)
                raise RuntimeError("too late to matter")

        def until() -> bool:
            done = [each.done_offset for each in consumer._made.queues.values() if each.topic == "hangs"]
            if done == [2]:
                go_on.set()
            return go_on.is_set()

        consumer.run(work, threads=2, max_processing_time_ms=100, until=until)
    assert times == {b"hangs": 1, b"next": 1}
    with BrokerAdmin(brokers.servers) as admin:
        (dead,) = admin.dead_letters("hangers")
        assert dead.properties["DLQ_CAUSE"] == "it was worked on for more than 100 ms"
        assert dead.properties["DLQ_ATTEMPT"] == "1"


def test_dead_letters_are_listed_and_sent_to_their_group_again(brokers: LocalBrokers) -> None:
    sent(brokers, "letters", [b"bad", b"worse"])
    times: Counter[bytes] = Counter()
    topics: set[str] = set()

    def work(message: StoredMessage) -> None:
        times[message.body] += 1
        topics.add(message.topic)
        if times[message.body] == 1:
            raise RuntimeError("not today")

    with Consumer(brokers.servers, "readers", "letters", most_retries=0) as consumer:
        consumer.run(work, threads=3, until=lambda: len(times) == 2)
        with BrokerAdmin(brokers.servers) as admin:
            dead = {each.body: each for each in admin.dead_letters("readers")}
            assert dead[b"bad"].properties["DLQ_CAUSE"] == "RuntimeError: not today"
            assert [each.body for each in admin.dead_letters("readers", most_messages=1)] == [
                min(dead.values(), key=lambda each: each.queue_offset).body
            ]
            assert "RuntimeError: not today" in cli(brokers, "list", "readers")
            assert cli(brokers, "list", "readers", "--json").count("DLQ_CAUSE") == 2
            offset = str(dead[b"bad"].queue_offset)
            assert cli(brokers, "resend", "readers", "--offset", offset) == (
                "1 dead letters of readers are sent again\n"
            )
            with pytest.raises(BadRequest, match="no dead letter 7"):
                admin.resend("readers", [7])
            consumer.run(work, until=lambda: times[b"bad"] == 2)
    assert (times, topics) == ({b"bad": 2, b"worse": 1}, {"letters"})


def test_a_trace_stays_with_its_message_through_delay_retry_and_dead_letter(
    brokers: LocalBrokers,
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    seen: list[tuple[int, str]] = []

    def work(message: StoredMessage) -> None:
        seen.append((message.reconsume_times, message.properties["traceparent"]))
        if len(seen) <= 2:
            raise RuntimeError("not today")

    with BrokerAdmin(brokers.servers) as admin, Producer(brokers.servers) as producer:
        admin.create_topic("traced", 1)
        message = Message("traced", b"x", properties={"traceparent": trace})
        producer.send(message, delay_level=1)
        with Consumer(brokers.servers, "tracers", "traced", most_retries=1) as consumer:
            consumer.run(work, until=lambda: len(seen) == 2)
            (dead,) = admin.dead_letters("tracers")
            assert dead.properties["traceparent"] == trace
            admin.resend("tracers", [dead.queue_offset])
            consumer.run(work, until=lambda: len(seen) == 3)
    assert seen == [(0, trace), (1, trace), (0, trace)]


def cli(brokers: LocalBrokers, *words: str) -> str:
    told = CliRunner().invoke(app, ["broker", "dlq", *words, "--servers", brokers.servers])
    assert told.exit_code == 0, told.output
    return told.stdout


def test_an_orderly_consumer_holds_its_queue_while_it_works(brokers: LocalBrokers) -> None:
    sent(brokers, "steps", [b"0", b"1", b"2"], queues=2)
    working: set[tuple[int, str]] = set()
    seen: list[tuple[int, bytes, str]] = []
    both, go_on = threading.Event(), threading.Event()

    def consume(name: str) -> None:
        def work(message: StoredMessage) -> None:
            others = [each for queue_id, each in working if queue_id == message.queue_id]
            assert not others, "two work on one queue"
            working.add((message.queue_id, name))
            if message.body == b"0":
                if sum(each == (message.queue_id, name) for each in working) and len(working) == 2:
                    both.set()
                assert go_on.wait(60)
            seen.append((message.queue_id, message.body, name))
            working.discard((message.queue_id, name))

        with Consumer(brokers.servers, "steppers", "steps", orderly=True, name=name) as consumer:
            joined.append(consumer)
            consumer.run(work, until=lambda: len(seen) >= 6)

    joined: list[Consumer] = []
    threads = [threading.Thread(target=consume, args=(name,)) for name in "ab"]
    threads[0].start()
    assert both.wait(60), "it works on both queues"
    threads[1].start()
    (first,) = joined
    while not any(each.is_asked_for for each in list(first._made.queues.values())):
        assert threads[0].is_alive()
    assert not seen
    with BrokerAdmin(brokers.servers) as admin:
        (group,) = admin.groups("steppers")
        reads = {each.member: [q for q in each.queues if q[0] == "steps"] for each in group.members}
        assert reads["a"] == [("steps", 0), ("steps", 1)]
    go_on.set()
    for thread in threads:
        thread.join(60)
    for queue_id in range(2):
        assert [body for at, body, _ in seen if at == queue_id] == [b"0", b"1", b"2"]
    assert {name for *_, name in seen} == {"a", "b"}
    assert committed(brokers, "steppers", "steps") == [3, 3]


def test_an_orderly_consumer_tries_again_itself_with_nothing_of_the_queue_in_between(
    brokers: LocalBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.client.async_consumer.ORDERLY_PAUSE_MS", 1)
    sent(brokers, "strict", [b"waits", b"fails", b"last"])
    seen: list[tuple[bytes, int]] = []

    def work(message: StoredMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"waits" and len(seen) < 3:
            raise SuspendQueue(pause_ms=1)
        if message.body == b"fails":
            raise RuntimeError("not today")

    with Consumer(brokers.servers, "strict", "strict", orderly=True, most_retries=2) as consumer:
        for options in ({"threads": 2}, {"max_processing_time_ms": 1}):
            with pytest.raises(BadRequest, match="one message of a queue at a time"):
                consumer.run(work, **options)  # type: ignore[arg-type]
        consumer.run(work, until=lambda: bool(seen) and seen[-1][0] == b"last")
    assert seen == [(b"waits", 0)] * 3 + [(b"fails", times) for times in range(3)] + [(b"last", 0)]
    with BrokerAdmin(brokers.servers) as admin:
        (dead,) = admin.dead_letters("strict")
        assert (dead.body, dead.properties["DLQ_ATTEMPT"]) == (b"fails", "3")
