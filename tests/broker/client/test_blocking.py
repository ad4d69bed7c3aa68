"""The blocking clients of brokers: closed by another thread, and in processes that were forked."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorumlog import connect as connect_log
from quorumlog.broker import BrokerAdmin, BrokerClient, Consumer, Message, Producer, connect
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.errors import LedgerError
from quorumlog.kv import connect as connect_kv
from tests.net.test_loop_thread import WAIT_S, in_a_child, outcome_of


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with LocalBrokers(1, groups=lambda member_id: GroupService()) as brokers:
        with BrokerAdmin(brokers.servers) as admin:
            admin.create_topic("orders", 1)
        yield brokers


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """The address of a server that says nothing, and whether it was asked anything."""
    server = socket.create_server(("127.0.0.1", 0))
    asked = threading.Event()
    accepted: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                accepted.append(server.accept()[0])
            except OSError:
                return
            if accepted[-1].recv(1):
                asked.set()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}", asked
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for each in accepted:
        each.close()


WAITING: dict[str, tuple[Callable[[str], Any], Callable[[Any], object]]] = {
    "producer": (lambda address: Producer(address), lambda broker: broker.queue_count("t")),
    "sending producer": (
        lambda address: Producer(address),
        lambda broker: broker.send(Message("t", b"")),
    ),
    "session": (
        lambda address: Producer(address, idempotent=True),
        lambda broker: broker.last_sequence(),
    ),
    "admin": (lambda address: BrokerAdmin(address), lambda broker: broker.topics()),
    "kv": (lambda address: connect_kv(address), lambda kv: kv.get("a")),
    "kv watch": (lambda address: connect_kv(address), lambda kv: next(iter(kv.watch("a")))),
    "log": (lambda address: connect_log(address), lambda log: log.end_index()),
}


@pytest.mark.parametrize("client", WAITING)
def test_close_of_another_thread_ends_who_waits_for_a_silent_server(
    client: str, silent: tuple[str, threading.Event]
) -> None:
    make, call = WAITING[client]
    address, asked = silent
    made = make(address)
    thread, found = outcome_of(lambda: call(made))
    assert asked.wait(WAIT_S)
    made.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(found[0], LedgerError) and "closed" in str(found[0]), found


def test_close_ends_a_pull_that_waits(brokers: LocalBrokers) -> None:
    client = connect(brokers.servers)
    receipt = client.send(Message("orders", b"one"))

    def pull() -> None:
        while True:  # it may come back with nothing
            client.pull("orders", receipt.queue_id, receipt.queue_offset + 1, wait_ms=60_000)

    thread, found = outcome_of(pull)
    client.status()  # on the same connection, behind it
    client.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(found[0], LedgerError), found


@pytest.mark.parametrize("call", ["poll", "run"])
def test_close_ends_a_consumer(brokers: LocalBrokers, call: str) -> None:
    begun = threading.Event()
    consumer = Consumer(brokers.servers, f"closed-{call}", "orders")

    def until() -> bool:
        begun.set()
        return False

    def consume() -> None:
        with consumer:
            if call == "run":
                consumer.run(lambda message: None, until=until)
            else:
                while True:  # of what other tests have sent
                    begun.set()
                    consumer.poll(wait_ms=60_000)

    thread, found = outcome_of(consume)
    assert begun.wait(WAIT_S)
    consumer.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(found[0], LedgerError), found


def test_a_handler_may_close_its_consumer(brokers: LocalBrokers) -> None:
    with Producer(brokers.servers) as producer:
        producer.send(Message("orders", b"last"))

    def consume() -> None:
        with Consumer(brokers.servers, "closes-itself", "orders") as consumer:
            consumer.run(lambda message: consumer.close())

    thread, found = outcome_of(consume)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(found[0], LedgerError), found


def test_what_is_found_as_an_interrupt_comes_is_not_committed(
    brokers: LocalBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(brokers.servers) as producer:
        producer.send(Message("orders", b"found"))

    with Consumer(brokers.servers, "interrupted", "orders") as consumer:
        run = consumer._thread.run

        def interrupted(work: Any) -> None:
            assert run(work)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer._thread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(wait_ms=int(WAIT_S * 1000))
        consumer.commit()
    with Consumer(brokers.servers, "interrupted", "orders") as consumer:
        assert consumer.poll(wait_ms=int(WAIT_S * 1000))


_MODULE: list[BrokerClient] = []


def _send(number: int) -> int:
    return _MODULE[0].send(Message("orders", b"%d" % number)).message_count


def test_a_pool_of_processes_uses_the_client_of_its_module(brokers: LocalBrokers) -> None:
    with connect(brokers.servers) as client:
        _MODULE[:] = [client]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(_send, range(8)).get(WAIT_S) == [1] * 8
            pool.close()
            pool.join()
        assert client.send(Message("orders", b"parent")).message_count == 1


def test_sessions_and_members_stay_with_the_parent(brokers: LocalBrokers) -> None:
    with (
        Producer(brokers.servers, producer_id="p1") as named,
        Producer(brokers.servers, idempotent=True) as drawn,
        Consumer(brokers.servers, "forked", "orders") as consumer,
        connect_log(str(brokers.cluster.members[0]), producer_id="p2") as log,
    ):
        for sends in (lambda: named.send(Message("orders", b"a")), lambda: log.append(b"b")):
            said = in_a_child(lambda sends=sends: str(sends()))  # type: ignore[misc]
            assert said.startswith("BadRequest: a producer has one session at a time, which stays with")
        assert in_a_child(lambda: str(consumer.poll())).startswith(
            "BadRequest: a consumer is a member of"
        )
        assert in_a_child(lambda: str(drawn.send(Message("orders", b"c")).message_count)) == "1"
        assert named.send(Message("orders", b"d")).message_count == 1
        assert drawn.send(Message("orders", b"e")).message_count == 1
