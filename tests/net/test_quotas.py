"""What one user and one address may take: in virtual time, and at real ports of each kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker import Message
from quorumlog.broker import connect as connect_broker
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.client import connect
from quorumlog.config import LimitOptions, TlsOptions
from quorumlog.errors import LedgerError, Overloaded
from quorumlog.kv import connect as connect_store
from quorumlog.kv.testing import LocalStores
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.limits import process_limits
from quorumlog.net.quotas import Quotas
from quorumlog.net.tls import ClientTls
from quorumlog.server.local_cluster import LocalCluster
from quorumlog.wire.client_messages import ReadRequest, StatusRequest
from tests import certificates
from tests.net.test_listener import CLIENT, PEER, answer, open_port, run
from tests.waiting import eventually, row_of


class Client:
    """One connection, and what it is answered."""

    def __init__(self, quotas: Quotas, user: str = "", host: str = "10.0.0.9") -> None:
        self.user, self.peer_host = user, host
        self.meter: Any = None
        self.refusals: list[Overloaded] = []
        self._number = 0
        quotas.enter(self)

    def write(self, buffers: list[Any]) -> None:
        (frame,) = FrameDecoder().receive_data(b"".join(map(bytes, buffers)))
        assert isinstance(frame.message, ErrorResponse)
        refusal = error_of(frame.message)
        assert isinstance(refusal, Overloaded)
        self.refusals.append(refusal)

    def asks(self, size_bytes: int = 100, request_id: int = 0) -> int:
        """The id of the request; 0: it was refused."""
        self._number += 1
        number = request_id or self._number
        frame = Frame("default", ReadRequest(request_id=number, first_index=0), None, size_bytes)
        return number if self.meter.admitted([frame], self) else 0


class Time:
    def __init__(self, **limits: int) -> None:
        self.now_s = 1000.0
        self.quotas = Quotas(lambda: self.now_s)
        self.quotas.set(LimitOptions(**limits))


def test_without_limits_nothing_is_measured() -> None:
    time = Time(user_connections=5)
    assert Client(time.quotas, "bob").meter is None


def test_so_many_requests_wait_for_their_answers_and_no_more() -> None:
    time = Time(user_requests=2)
    one, other = Client(time.quotas, "bob"), Client(time.quotas, "bob", "10.0.0.8")
    first = one.asks()
    assert first and other.asks(request_id=7) and not one.asks() and not other.asks()
    (refusal,) = one.refusals
    assert refusal.retry_after_ms > 0 and "user 'bob'" in str(refusal) and "is 2" in str(refusal)
    assert Client(time.quotas, "eve").asks()
    one.meter.answered(first, 10)
    one.meter.answered(first, 10)  # what a watch tells later
    assert one.asks(request_id=7) and not one.asks(request_id=7), "no id is counted once for many"
    time.quotas.leave(one)
    assert other.asks() and not other.asks()


def bytes_are_made_good_before_the_next_request_is_taken() -> None:
    time = Time(address_bytes_per_second=1000)
    client = Client(time.quotas)
    number = client.asks(3000)
    assert number and not client.asks()
    assert client.refusals[-1].retry_after_ms == 2000
    client.meter.answered(number, 1000)
    client.meter.answered(12345, 1 << 30)  # which nobody has asked for
    assert not client.asks() and client.refusals[-1].retry_after_ms == 3000
    time.now_s += 2.5
    assert not client.asks() and client.refusals[-1].retry_after_ms == 500, "a refusal costs nothing"
    time.now_s += 0.5
    assert client.asks(3000)
    time.quotas.leave(client)
    again = Client(time.quotas)
    assert not again.asks(), "who comes again owes what it did"
    time.now_s += 1000
    assert again.asks(900) and again.asks(200) and not again.asks()
    assert again.refusals[-1].retry_after_ms == 100, "of one second at most is kept"


def test_bytes_are_made_good_before_the_next_request_is_taken() -> None:
    bytes_are_made_good_before_the_next_request_is_taken()


def test_a_user_and_its_address_have_limits_of_their_own() -> None:
    time = Time(user_bytes_per_second=1000, address_requests=1)
    bob, eve = Client(time.quotas, "bob"), Client(time.quotas, "eve")
    assert bob.asks(2000) and not eve.asks()
    assert "address '10.0.0.9'" in str(eve.refusals[-1])
    time.quotas.leave(bob)
    assert eve.asks()
    bob = Client(time.quotas, "bob", "10.0.0.8")
    assert not bob.asks() and "user 'bob'" in str(bob.refusals[-1])


def test_limits_that_are_set_count_for_who_is_there() -> None:
    time = Time()
    client = Client(time.quotas, "bob")
    time.quotas.set(LimitOptions(user_requests=1, user_connections=1))
    assert client.asks() and not client.asks()
    assert time.quotas.refusal_of_connection(SimpleNamespace(user="bob", peer_host="elsewhere"))
    assert not time.quotas.refusal_of_connection(SimpleNamespace(user="eve", peer_host="10.0.0.9"))
    time.quotas.set(LimitOptions())
    assert client.meter is None
    time.quotas.set(LimitOptions(user_requests=1))
    assert client.asks() and not client.asks()


def test_what_is_refused_is_counted_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    time, over = Time(user_requests=1), process_limits().over
    before = over["user_requests"]
    client = Client(time.quotas, "bob")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            client.asks()
        time.now_s += 61
        client.asks()
    assert over["user_requests"] == before + 5
    assert len(caplog.records) == 2


def test_who_keeps_something_alive_or_asks_who_leads_is_never_refused() -> None:
    client = Client(Time(address_requests=1).quotas)
    assert client.asks() and not client.asks()
    frames = [Frame("default", StatusRequest(request_id=9), None, 50)] * 10
    assert client.meter.admitted(frames, client) == frames


def test_whoever_owes_nothing_any_more_is_forgotten() -> None:
    time = Time(address_bytes_per_second=1000)
    for number in range(5000):
        time.now_s += 0.01
        client = Client(time.quotas, host=f"10.1.{number >> 8}.{number & 255}")
        client.asks(500 if number % 2 else 5000)
        time.quotas.leave(client)
    assert len(time.quotas._shares) <= 1001


# ---------------------------------------------------------------- at a port


def members_come_in_where_clients_have_reached_their_limit() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = SimpleNamespace(  # type: ignore[assignment]
                quotas=Quotas(), greet=lambda *_: iter(()), lost=lambda _: None
            )
            port.listener.access.quotas.set(LimitOptions(address_connections=1, address_requests=1))
            assert isinstance(await answer(await port.dial(CLIENT)), HelloResponse)
            refusal = await answer(await port.dial(CLIENT))
            assert isinstance(refusal, ErrorResponse)
            error = error_of(refusal)
            assert isinstance(error, Overloaded) and error.retry_after_ms > 0
            for _ in range(3):
                assert isinstance(await answer(await port.dial(PEER)), HelloResponse)
            peers = [each for each in port.listener.connections.values() if not each.is_client]
            assert len(peers) == 3 and not any(each.meter for each in peers)
            looks = await port.dial(Hello(role="client", looks=True))
            assert isinstance(await answer(looks), HelloResponse)

    run(scene)


def test_members_come_in_where_clients_have_reached_their_limit() -> None:
    members_come_in_where_clients_have_reached_their_limit()


def limit(cluster: LocalCluster, **limits: int) -> None:
    """All members, while they run."""
    for member in cluster.running:
        server = cluster.server(member)
        assert server.loop is not None

        async def set_them(server: Any = server) -> None:
            server.set_limits(LimitOptions(**limits))

        asyncio.run_coroutine_threadsafe(set_them(), server.loop).result(30)


def refusals_while(act: Callable[[], object], option: str) -> int:
    over = process_limits().over
    before = over[option]
    act()
    return over[option] - before


BODY, RATE = bytes(300_000), 100_000
"""Two seconds are to be made good for one."""


def test_a_client_of_the_log_waits_and_goes_on() -> None:
    with LocalCluster(3) as cluster, connect(cluster.servers) as log:
        limit(cluster, address_bytes_per_second=RATE)

        def append() -> None:
            for _ in range(2):
                log.append(BODY)

        assert refusals_while(append, "address_bytes_per_second") > 0
        limit(cluster, address_requests=1)
        assert len(list(log.read(0))) == 2, "what is refused is not written"
        tail = log.tail(2)
        with connect(cluster.servers, timeout_ms=300) as other:
            # The tail's request waits at whichever member gives it, the leader perhaps.
            assert all(row.reachable for row in other.status())
        tail.close()
        limit(cluster)
        assert log.append(BODY).last_index >= 2
        assert all(row.over_limits > 0 for row in log.status())


def test_a_client_of_the_store_waits_and_goes_on() -> None:
    with LocalStores() as stores, connect_store(stores.servers) as store:
        limit(stores.cluster, address_bytes_per_second=RATE)

        def put() -> None:
            for number in range(2):
                store.put(f"k{number}", BODY)

        assert refusals_while(put, "address_bytes_per_second") > 0
        limit(stores.cluster)
        assert len(store.prefix("k").items) == 2


def test_a_client_of_the_broker_waits_and_goes_on() -> None:
    with LocalBrokers(topics={"orders": 1}) as brokers:
        eventually(lambda: any(each.role.state.is_master for each in brokers.brokers.values()))
        with connect_broker(brokers.servers) as broker:
            limit(brokers.cluster, address_bytes_per_second=RATE)

            def send() -> None:
                for _ in range(2):
                    broker.send(Message("orders", BODY))

            assert refusals_while(send, "address_bytes_per_second") > 0
            limit(brokers.cluster)
            assert [queue.max_offset for queue in broker.queues()] == [2]


def test_connections_above_a_limit_wait_until_one_ends_and_members_do_not() -> None:
    with LocalCluster(3) as cluster:
        limit(cluster, address_connections=1, address_requests=1, address_bytes_per_second=RATE)
        with connect(cluster.servers) as log:
            log.append(BODY)
            follower = next(each for each in cluster.running if each != cluster.leader())
            leader = next(m for m in cluster.members if m.member_id == cluster.leader())
            with (
                connect(str(leader), timeout_ms=200) as other,
                pytest.raises(LedgerError, match=r"address_connections is 1"),
            ):
                other.append(b"b")
            with connect(cluster.servers) as looks:
                assert all(row.reachable for row in looks.status())
            cluster.kill(follower)
            cluster.restart(follower)  # it is let in by members where no client is
            row = row_of(log, follower)
            eventually(lambda: row_of(log, follower).committed_index >= 0, what=f"{row}")
        limit(cluster, address_connections=1)
        with connect(str(leader)) as other:
            other.append(b"c")


def test_a_client_with_a_members_certificate_is_a_member() -> None:
    def tls(member_id: str) -> TlsOptions:
        return certificates.options_of(certificates.member(member_id), client_auth="optional")

    ca = str(certificates.directory() / "ca.crt")

    def client(pair: Any) -> ClientTls:
        return ClientTls(ca, str(pair.cert), str(pair.key))

    alice, member = certificates.user("alice"), certificates.member("n7")
    with LocalCluster(1, tls=tls) as cluster:
        limit(cluster, address_connections=1, user_connections=1)
        with connect(cluster.servers, tls=client(alice)) as log:
            log.append(b"a")
            with connect(cluster.servers, tls=client(member)) as other:
                other.append(b"b")
            with (
                connect(cluster.servers, tls=client(alice), timeout_ms=200) as again,
                pytest.raises(LedgerError, match="address_connections"),
            ):
                again.append(b"c")
