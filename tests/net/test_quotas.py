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
from quorumlog.errors import LedgerError, Overloaded, ProtocolViolation
from quorumlog.kv import connect as connect_store
from quorumlog.kv.requests import AnswerResponse, CancelRequest, EventsResponse, WatchRequest
from quorumlog.kv.testing import LocalStores
from quorumlog.net.connection import LoopTurn
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.limits import MOST_LOOKING, ProcessLimits, process_limits
from quorumlog.net.quotas import Quotas
from quorumlog.net.tls import ClientTls
from quorumlog.server.local_cluster import LocalCluster
from quorumlog.wire.client_messages import ReadRequest, StatusRequest
from tests import certificates
from tests.net.test_listener import CLIENT, PEER, Streams, answer, bytes_of, open_port, run
from tests.waiting import eventually, row_of

LOOKS = Hello(role="client", looks=True)


class Client:
    """One connection, and what it is answered."""

    def __init__(self, quotas: Quotas, user: str = "", host: str = "10.0.0.9") -> None:
        self.user, self.peer_host = user, host
        self.meter: Any = None
        self.refusals: list[Overloaded] = []
        self._number = 0
        quotas.enter(self)

    def send(self, group: str, message: object) -> None:
        assert isinstance(message, ErrorResponse)
        refusal = error_of(message)
        assert isinstance(refusal, Overloaded)
        self.refusals.append(refusal)

    def asks(self, size_bytes: int = 100, request_id: int = 0) -> int:
        """The id of the request; 0: it was refused."""
        self._number += 1
        number = request_id or self._number
        frame = Frame("default", ReadRequest(request_id=number, first_index=0), None, size_bytes)
        return number if self.meter.admitted([frame], self) else 0

    def answered(self, request_id: int, size_bytes: int = 10) -> None:
        self.meter.answered(AnswerResponse(answer=b"", request_id=request_id), size_bytes)


class Time:
    def __init__(self, **limits: int) -> None:
        self.now_s = 1000.0
        self.quotas = Quotas(lambda: self.now_s)
        self.quotas.set(LimitOptions(**limits))


def test_without_limits_nothing_is_measured() -> None:
    time = Time(user_connections=5)
    assert Client(time.quotas, "bob").meter is None


def test_nobody_owes_what_was_taken_while_there_was_no_rate() -> None:
    time = Time(address_requests=9, address_bytes_per_second=1000)
    client = Client(time.quotas)
    client.answered(client.asks(), 100)
    time.quotas.set(LimitOptions(address_requests=9))
    client.answered(client.asks(), 10**9)
    time.quotas.set(LimitOptions(address_requests=9, address_bytes_per_second=1000))
    time.now_s += 1
    assert client.asks()


def test_so_many_requests_wait_for_their_answers_and_no_more() -> None:
    time = Time(user_requests=2)
    one, other = Client(time.quotas, "bob"), Client(time.quotas, "bob", "10.0.0.8")
    first = one.asks()
    assert first and other.asks(request_id=7) and not one.asks() and not other.asks()
    (refusal,) = one.refusals
    assert refusal.retry_after_ms > 0 and "user 'bob'" in str(refusal) and "is 2" in str(refusal)
    assert Client(time.quotas, "eve").asks()
    one.answered(first, 10)
    one.answered(first, 10)  # what a watch tells later
    assert one.asks() and not one.asks()
    time.quotas.leave(one)
    assert other.asks() and not other.asks()


def bytes_are_made_good_before_the_next_request_is_taken() -> None:
    time = Time(address_bytes_per_second=1000)
    client = Client(time.quotas)
    number = client.asks(3000)
    assert number and not client.asks()
    assert client.refusals[-1].retry_after_ms == 2000
    client.answered(number, 1000)
    client.answered(12345, 1 << 30)  # which nobody has asked for
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
    frames = [Frame("default", StatusRequest(request_id=9 + n), None, 50) for n in range(10)]
    assert client.meter.admitted(frames, client) == frames


@pytest.mark.parametrize("passes_first", [False, True])
def test_no_place_is_given_back_by_the_answer_to_another_request(passes_first: bool) -> None:
    """That of a request that passes limits comes at once, under whatever id it was asked."""
    client = Client(Time(address_requests=1).quotas)
    passing = Frame("default", StatusRequest(request_id=7), None, 50)
    if passes_first:
        assert client.meter.admitted([passing], client)
    else:
        assert client.asks(request_id=7)
    with pytest.raises(ProtocolViolation, match="two requests with the id 7"):
        client.asks(request_id=7) if passes_first else client.meter.admitted([passing], client)


def test_what_a_watch_tells_gives_no_place_back_to_a_request_with_its_id() -> None:
    client = Client(Time(address_requests=1).quotas)
    told = EventsResponse(request_id=7, next_revision=1, events=[])
    watch = Frame("default", WatchRequest(request_id=7, key=b"a"), None, 50)
    assert client.meter.admitted([watch], client) and not client.asks()
    client.meter.answered(told, 10)
    assert client.asks(request_id=7)
    client.meter.answered(told, 10)
    assert not client.asks()
    client.answered(7)
    cancels = [Frame("default", CancelRequest(watch=7), None, 50)] * 2  # which nothing answers
    assert client.meter.admitted(cancels, client) == cancels


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
            looks = await port.dial(LOOKS)
            assert isinstance(await answer(looks), HelloResponse)

    run(scene)


def access_of(**limits: int) -> Any:
    """Of a port: whoever says a name has it."""

    def greet(connection: Any, hello: Hello, tls: Any) -> Any:
        connection.user = hello.user
        return iter(())

    access = SimpleNamespace(quotas=Quotas(), greet=greet, lost=lambda _: None)
    access.quotas.set(LimitOptions(**limits))
    return access


async def answers(streams: Streams, count: int) -> list[Any]:
    decoder, found = FrameDecoder(), list[Any]()
    while len(found) < count:
        data = await streams[0].read(1 << 16)
        assert data, found
        found += [frame.message for frame in decoder.receive_data(data)]
    return found


def read(number: int) -> ReadRequest:
    return ReadRequest(request_id=number, first_index=0)


def test_who_only_looks_may_ask_nothing_else() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = access_of(address_connections=1)
            await answer(await port.dial(CLIENT))
            status = StatusRequest(request_id=8)
            looks = await port.dial(LOOKS, read(7), status)
            welcome, refusal = await answers(looks, 2)
            assert isinstance(welcome, HelloResponse) and refusal.request_id == 7
            assert isinstance(error_of(refusal), Overloaded)
            looks[1].write(bytes_of(read(9)))
            refusal = await answer(looks)
            assert isinstance(refusal, ErrorResponse) and refusal.request_id == 9
            assert port.said[-1] == status and not any(isinstance(m, ReadRequest) for m in port.said)

    run(scene)


def test_one_address_does_not_take_all_places_of_those_that_look() -> None:
    limits = ProcessLimits(lambda: 100, lambda: 0)
    mine = [object() for _ in range(MOST_LOOKING)]
    assert sum(limits.lets_look(each, "10.0.0.9") for each in mine) < MOST_LOOKING
    assert limits.lets_look(object(), "10.0.0.8")
    limits.leave(mine[0])
    assert limits.lets_look(object(), "10.0.0.9")


def test_who_looks_comes_in_where_its_user_has_reached_its_limit() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = access_of(user_connections=1)
            bob = Hello(role="client", user="bob")
            assert isinstance(await answer(await port.dial(bob)), HelloResponse)
            assert isinstance(await answer(await port.dial(bob)), ErrorResponse)
            looks = await port.dial(Hello(role="client", user="bob", looks=True))
            assert isinstance(await answer(looks), HelloResponse)

    run(scene)


def test_what_comes_together_with_a_hello_is_counted() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = access_of(address_requests=2)
            client = await port.dial(CLIENT, *[read(number) for number in range(1, 11)])
            refused = [each.request_id for each in (await answers(client, 9))[1:]]
            assert refused == list(range(3, 11)) and len(port.said) == 3

    run(scene)


def test_a_turn_is_full_of_requests_that_are_refused_as_of_others() -> None:
    """Thousands at one look would keep the loop from its heartbeats."""

    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = access_of(address_requests=1)
            client = await port.dial(CLIENT, read(1))
            await answer(client)
            (connection,) = port.listener.connections.values()
            turn = LoopTurn.of(asyncio.get_running_loop())
            before = turn.frames
            connection.received(bytes_of(*[read(number) for number in range(2, 52)]))
            assert turn.frames == before + 50 and len(port.said) == 2

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
            assert [queue.max_offset for queue in broker.queues("orders")] == [2]


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
