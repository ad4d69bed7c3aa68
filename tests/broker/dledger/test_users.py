"""Rights on topics and consumer groups, as clients of a broker on a replicated log meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorumlog.broker import Message, connect, wire
from quorumlog.broker import group_commands as commands
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.needs import NEEDS, SAID
from quorumlog.client import connect as log_of
from quorumlog.errors import Forbidden, NotAuthenticated
from quorumlog.log_state.users import Grant, Kind, Right, UserOrder, UserVerb
from quorumlog.net.credentials import ClientUser, verifier_for
from tests.waiting import eventually

ALICE, BOB = ClientUser("alice", "sesame"), ClientUser("bob", "tahini")
GRANTS = (
    Grant(Right.READ, Kind.TOPIC, b"orders", True),
    Grant(Right.WRITE, Kind.TOPIC, b"news", True),
)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with LocalBrokers(1, topics={"orders": 1, "orders-private": 1, "news": 1}) as made:
        eventually(lambda: made.brokers["n0"].role.state.is_master)
        with log_of(made.cluster.servers) as log:
            admin = UserOrder(UserVerb.ADD_USER, "alice", ("admin",), (), verifier_for("sesame"))
            log.change_users(admin)
        with log_of(made.cluster.servers, user=ALICE) as log:
            log.change_users(UserOrder(UserVerb.ADD_ROLE, "r", (), GRANTS))
            log.change_users(UserOrder(UserVerb.ADD_USER, "bob", ("r",), (), verifier_for("tahini")))
        yield made


def test_every_request_has_its_needs() -> None:
    assert set(NEEDS) == set(wire.RESPONSE_OF)
    questions = {commands.Stand, commands.TopicsQuestion, commands.GroupsQuestion}
    assert set(SAID) == {*commands.FROM_CLIENTS, *questions}


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
        revoked = UserOrder(UserVerb.REVOKE, "r", (), GRANTS[:1])
        granted = UserOrder(UserVerb.GRANT, "r", (), GRANTS[:1])
        log.change_users(revoked)
        with pytest.raises(Forbidden):
            bob.pull("orders", 0, end, wait_ms=60_000)
        log.change_users(granted)
        assert not bob.pull("orders", 0, end).messages
