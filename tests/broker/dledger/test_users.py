"""Rights on topics and consumer groups, as clients of a broker on a replicated log meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.broker import BrokerAdmin, Consumer, Message, Producer, connect, wire
from quorumlog.broker import group_commands as commands
from quorumlog.broker.client.broker_calls import UniqKeys, encode_messages
from quorumlog.broker.dledger.dledger_broker import SMALL_INDEX, LocalBrokers
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.message import SCHEDULE_TOPIC
from quorumlog.broker.needs import NEEDS, NEEDS_OF_BODY, needs_of_records, needs_to_send, plain_topics
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.client import connect as log_of
from quorumlog.errors import Forbidden, NotAuthenticated
from quorumlog.log_state.users import Kind, Right, RoleGrant, UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, verifier_for
from tests.waiting import eventually

ALICE, BOB = ClientUser("alice", "sesame"), ClientUser("bob", "tahini")
GRANTS = (
    RoleGrant(Right.READ, Kind.TOPIC, b"orders", True),
    RoleGrant(Right.WRITE, Kind.TOPIC, b"news", True),
    RoleGrant(Right.READ, Kind.CONSUMER_GROUP, b"shop", True),
)
CONFIG = replace(SMALL_INDEX, message_delay_level="1s " * 17 + "1s")


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with LocalBrokers(1, config=CONFIG, groups=lambda member_id: GroupService(GroupOptions())) as made:
        eventually(lambda: made.brokers["n0"].role.state.is_master)
        with BrokerAdmin(made.servers) as broker_admin:
            for topic in ("orders", "orders-private", "news"):
                broker_admin.create_topic(topic, 1)
        with log_of(made.cluster.servers) as log:
            admin = UserOrder(UserOperation.ADD_USER, "alice", ("admin",), (), verifier_for("sesame"))
            log.change_users(admin)
        with log_of(made.cluster.servers, user=ALICE) as log:
            log.change_users(UserOrder(UserOperation.ADD_ROLE, "r", (), GRANTS))
            log.change_users(
                UserOrder(UserOperation.ADD_USER, "bob", ("r",), (), verifier_for("tahini"))
            )
        yield made


def test_every_request_has_its_needs() -> None:
    assert set(NEEDS) == set(wire.RESPONSE_OF)
    questions = {commands.FreshnessProbe, commands.TopicsQuestion, commands.GroupsQuestion}
    assert set(NEEDS_OF_BODY) == {*commands.FROM_CLIENTS, *questions}


def test_topics_of_records_are_seen_one_by_one_as_they_are_all_at_once() -> None:
    def batch_of(*messages: Message) -> EntryBatch:
        parts = [encode_messages([each], 0, UniqKeys(), bytes(8)).buffer for each in messages]
        return EntryBatch(bytearray().join(parts), [len(each) for each in parts])

    plain = [Message("a", b""), Message("orders", b"x" * 300, keys=["k"]), Message("a", b"y")]
    for messages in (plain[:1], plain[1:2], plain):
        batch = batch_of(*messages)
        found = plain_topics(batch)
        assert found == {each.topic.encode() for each in messages}
        of_all = needs_of_records(RecordBatch.contiguous(batch.buffer, batch.sizes))
        assert {need for topic in found or () for need in needs_to_send(topic)} == set(of_all)
    wide, delayed = Message("w" * 200, b""), Message(SCHEDULE_TOPIC, b"")
    for closer in ([wide], [delayed], [*plain, delayed], plain * 30):
        assert plain_topics(batch_of(*closer)) is None
    for number, byte in ((4, 0), (39, 0x10), (84, 0x80), (84, 0x7F)):  # magic, flags, length of the body
        batch = batch_of(plain[0])
        batch.buffer[number] = byte
        assert plain_topics(batch) is None
    cut = batch_of(plain[1]).buffer[: 88 + 300 + 1]
    assert plain_topics(EntryBatch(cut, [len(cut)])) is None


def test_what_is_said_of_topics_and_groups_is_decoded_once_at_the_port() -> None:
    body = commands.encode(commands.CreateTopic("orders", 1))
    assert commands.command_of_client(body) is commands.command_of_client(body)
    other = commands.encode(commands.DeleteTopic("orders"))
    assert isinstance(commands.command_of_client(other), commands.DeleteTopic)
    assert isinstance(commands.command_of_client(body), commands.CreateTopic)


def test_topics_are_read_and_written_where_it_is_granted(brokers: LocalBrokers) -> None:
    address = brokers.addresses["n0"]
    with connect(address, user=ALICE) as alice, connect(address, user=BOB) as bob:
        sent = alice.send(Message("orders", b"a"))
        alice.send(Message("orders-private", b"b"))
        eventually(lambda: [m.body for m in bob.pull("orders", 0, 0).messages] == [b"a"])
        bob.send(Message("news", b"c"))
        refused: list[Callable[[], Any]] = [
            lambda: bob.pull("orders-private", 0, 0),
            lambda: bob.pull("news", 0, 0),
            lambda: bob.send(Message("orders", b"d")),
            lambda: bob.send_batch([Message("orders-private", b"d")]),
            lambda: bob.query("orders-private", "k"),
            lambda: bob.queues(),
            lambda: bob.message(sent.message_id),
            lambda: bob.replica(),
        ]
        for act in refused:
            with pytest.raises(Forbidden, match="user bob may not"):
                act()
    with pytest.raises(NotAuthenticated), connect(address) as nobody:
        nobody.pull("orders", 0, 0)


def test_a_pull_that_loses_its_right_ends(brokers: LocalBrokers) -> None:
    with (
        connect(brokers.addresses["n0"], user=BOB) as bob,
        log_of(brokers.cluster.servers, user=ALICE) as log,
    ):
        end = bob.max_offset("orders", 0)
        revoked = UserOrder(UserOperation.REVOKE, "r", (), GRANTS[:1])
        granted = UserOrder(UserOperation.GRANT, "r", (), GRANTS[:1])
        log.change_users(revoked)
        with pytest.raises(Forbidden):
            bob.pull("orders", 0, end, wait_ms=60_000)
        log.change_users(granted)
        assert not bob.pull("orders", 0, end).messages


def test_a_consumer_that_loses_a_right_raises_it(brokers: LocalBrokers) -> None:
    def changed(verb: UserOperation, grant: RoleGrant) -> None:
        with log_of(brokers.cluster.servers, user=ALICE) as log:
            log.change_users(UserOrder(verb, "r", (), (grant,)))

    for grant in (GRANTS[0], GRANTS[2]):  # it pulls; it commits, and is there
        with Consumer(brokers.servers, "shop", "orders", user=BOB) as consumer:
            changed(UserOperation.REVOKE, grant)
            with pytest.raises(Forbidden, match="user bob may not read"):
                while True:
                    consumer.poll(wait_ms=20_000)
            with pytest.raises(Forbidden):
                consumer.run(lambda message: None)
        changed(UserOperation.GRANT, grant)

        def joins() -> bool:
            try:
                with Consumer(brokers.servers, "shop", "orders", user=BOB):
                    return True
            except Forbidden:
                return False

        eventually(joins)


def test_a_delayed_message_needs_what_its_topic_does_and_a_retry_its_group(
    brokers: LocalBrokers,
) -> None:
    def named(topic: str) -> Message:
        return Message(SCHEDULE_TOPIC, b"x", properties={commands.REAL_TOPIC: topic})

    retry = commands.retry_topic
    with Producer(brokers.servers, user=BOB) as bob, connect(brokers.servers, user=BOB) as raw:
        bob.send(Message("news", b"later"), delay_level=1)
        for topic in ("orders", "orders-private"):
            with pytest.raises(Forbidden, match=f"may not write topic '{topic}'"):
                bob.send(Message(topic, b"later"), delay_level=1)
        raw.send_batch([named("news"), named(retry("shop"))], queue_id=0)
        for told, missing in (
            (named(retry("other")), "read consumer-group 'other'"),
            (named(SCHEDULE_TOPIC), "admin cluster"),
            (Message(SCHEDULE_TOPIC, b"x"), "admin cluster"),
        ):
            with pytest.raises(Forbidden, match=f"may not {missing}"):
                raw.send_batch([named("news"), told], queue_id=0)
    not_by_command = pytest.raises(Forbidden, match="may not admin consumer-group 'shop'")
    with BrokerAdmin(brokers.servers, user=BOB) as admin, not_by_command:
        admin.create_group("shop")  # which the heartbeat of a member does
    with (
        Producer(brokers.servers, user=ALICE) as alice,
        Consumer(brokers.servers, "shop", "orders", user=BOB) as consumer,
    ):
        alice.send(Message("orders", b"again"))
        tries: set[int] = set()
        while 1 not in tries:
            for message in consumer.poll(wait_ms=20_000):
                if message.body == b"again":
                    tries.add(message.reconsume_times)
                    if not message.reconsume_times:
                        consumer.retry(message)
