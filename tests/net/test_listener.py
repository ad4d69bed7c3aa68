"""One port: who is let in, for how long without a word, and who is refused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from quorumlog.client import connect
from quorumlog.consensus.messages import HeartbeatRequest
from quorumlog.errors import BadRequest, ConfigError, LedgerError, Overloaded, ProtocolViolation
from quorumlog.net import limits as limits_module
from quorumlog.net.access import Access, Challenging
from quorumlog.net.connection import Connection
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import MAGIC, Frame, FrameDecoder, encode_frame
from quorumlog.net.hello import Challenge, ChallengeResponse, Hello, HelloResponse
from quorumlog.net.limits import (
    GREETING_BYTES,
    GREETING_MS,
    ProcessLimits,
    process_limits,
    raise_descriptor_limit,
)
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls
from quorumlog.server.local_cluster import LocalCluster
from quorumlog.wire.client_messages import ReadResponse, StatusRequest

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
NO_LIMIT = 10_000


def bytes_of(*messages: Any) -> bytes:
    return b"".join(b"".join(encode_frame("default", message)) for message in messages)


CLIENT, PEER = Hello(role="client"), Hello(role="control")


class Port:
    """A listener whose clock is set by hand, and what has come to it."""

    def __init__(self, descriptors: int, limits: ProcessLimits | None, has_peers: bool) -> None:
        self.limits = limits or ProcessLimits(lambda: descriptors, lambda: 0)
        self.listener = Listener("the test", self._connect, limits=self.limits, has_peers=has_peers)
        self.said: list[Any] = []
        self._kept: list[Streams] = []
        """They would be closed with the last name for them."""
        self.loop: Any = asyncio.get_running_loop()
        self._skipped_s = 0.0
        real = self.loop.time
        self.loop.time = lambda: real() + self._skipped_s

    def _connect(self, connection: Connection) -> None:
        connection.on_frame = self._frame

    def _frame(self, connection: Connection, frame: Frame) -> None:
        self.said.append(frame.message)
        if isinstance(frame.message, Hello):
            connection.send(frame.group, HelloResponse())

    def pass_ms(self, ms: float) -> None:
        self._skipped_s += ms / 1000

    async def dial(self, *messages: Any) -> Streams:
        """It has been accepted when this returns."""
        accepted = self.limits.accepted
        host, _, number = self.listener.address.rpartition(":")
        streams = await asyncio.open_connection(host, int(number))
        self._kept.append(streams)
        streams[1].write(bytes_of(*messages))
        while self.limits.accepted == accepted:
            await asyncio.sleep(0)
        return streams


@contextlib.asynccontextmanager
async def open_port(
    descriptors: int = NO_LIMIT, limits: ProcessLimits | None = None, *, has_peers: bool = True
) -> AsyncIterator[Port]:
    port = Port(descriptors, limits, has_peers)
    await port.listener.open("127.0.0.1", 0)
    try:
        yield port
    finally:
        port.listener.close()
        port.listener.abort_connections()
        await asyncio.sleep(0)


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scene()

    # Its clock can be set: uvloop's cannot.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(bounded())


async def answer(streams: Streams) -> Any:
    """The first frame that comes back; None: the connection was closed without one."""
    decoder = FrameDecoder()
    with contextlib.suppress(ConnectionError):
        while data := await streams[0].read(1 << 16):
            for frame in decoder.receive_data(data):
                return frame.message
    return None


async def is_closed(streams: Streams) -> bool:
    with contextlib.suppress(ConnectionError):
        return await streams[0].read(1) == b""
    return True


# ---------------------------------------------------------------- the greeting


def test_whoever_greets_is_let_in_with_all_that_came_behind() -> None:
    async def scene() -> None:
        async with open_port() as port:
            streams = await port.dial(CLIENT, StatusRequest(request_id=7))
            assert isinstance(await answer(streams), HelloResponse)
            assert port.said == [CLIENT, StatusRequest(request_id=7)]
            assert len(port.listener.connections) == 1

    run(scene)


def whoever_says_nothing_in_time_is_closed() -> None:
    async def scene() -> None:
        async with open_port() as port:
            await port.dial()
            port.pass_ms(GREETING_MS + 1)
            for _ in range(100):
                await asyncio.sleep(0)
            assert port.limits.open_connections == 0

    run(scene)


def test_whoever_says_nothing_in_time_is_closed() -> None:
    whoever_says_nothing_in_time_is_closed()


@pytest.mark.parametrize("begun", [0, 4, 10, 30])
def test_whoever_has_not_said_its_whole_hello_in_time_is_closed(begun: int) -> None:
    """The clock runs from when it was let in, whatever has come since."""

    async def scene() -> None:
        async with open_port() as port:
            greeted = await port.dial(CLIENT)
            await answer(greeted)
            silent = await port.dial()
            silent[1].write(bytes_of(CLIENT)[:begun])
            await silent[1].drain()
            port.pass_ms(GREETING_MS - 1000)
            later = await port.dial()
            port.pass_ms(1001)
            assert await is_closed(silent)
            later[1].write(bytes_of(CLIENT))
            assert isinstance(await answer(later), HelloResponse)
            greeted[1].write(bytes_of(StatusRequest(request_id=1)))
            while StatusRequest(request_id=1) not in port.said:
                await asyncio.sleep(0)
            port.pass_ms(10 * GREETING_MS)
            assert len(port.listener.connections) == 2

    run(scene)


def test_a_hello_has_a_most_size_and_what_comes_behind_it_another() -> None:
    long = Hello(role="client", rival="x" * 2 * GREETING_BYTES)

    async def scene() -> None:
        async with open_port() as port:
            assert await is_closed(await port.dial(long))
            streams = await port.dial(CLIENT, long)
            await answer(streams)
            while long not in port.said:
                await asyncio.sleep(0)

    run(scene)


def test_a_connection_holds_little_memory_before_its_greeting() -> None:
    decoder = FrameDecoder(greeting_bytes=GREETING_BYTES)
    assert len(decoder.get_buffer()) <= 4096
    most = bytes_of(Hello(role="client", rival="x" * (GREETING_BYTES - 200)))
    assert decoder.receive_data(most[:-1]) == []
    assert len(most) - 1 + len(decoder.get_buffer()) <= GREETING_BYTES
    assert len(decoder.receive_data(most[-1:])) == 1


def test_a_frame_that_claims_to_be_large_takes_no_memory_before_the_greeting() -> None:
    decoder = FrameDecoder(greeting_bytes=GREETING_BYTES)
    claim = MAGIC + bytes(8) + (16 << 20).to_bytes(4, "little") + bytes(8)
    with pytest.raises(ProtocolViolation, match="above the limit"):
        decoder.receive_data(claim)


# ---------------------------------------------------------------- the limit


async def fill(port: Port) -> list[Streams]:
    clients = [await port.dial(CLIENT) for _ in range(port.limits.most_connections)]
    for each in clients:
        assert isinstance(await answer(each), HelloResponse)
    return clients


def test_above_the_limit_a_client_is_refused_with_a_sentence(caplog: Any) -> None:
    async def scene() -> None:
        async with open_port(16) as port:
            clients = await fill(port)
            assert len(clients) == 12
            for _ in range(3):
                refusal = await answer(await port.dial(CLIENT))
                assert isinstance(refusal, ErrorResponse)
                error = error_of(refusal)
                assert isinstance(error, Overloaded)
                assert error.retry_after_ms > 0
                assert "13 connections are open, more than the 12" in str(error)
            assert port.limits.refused == 3
            assert port.limits.problem.endswith("of 12; 3 refused since the start)")
            for each in clients[:4]:
                each[1].close()
            while port.limits.open_connections > 8:
                await asyncio.sleep(0)
            assert not port.limits.problem
            assert isinstance(await answer(await port.dial(CLIENT)), HelloResponse)

    with caplog.at_level(logging.WARNING):
        run(scene)
    assert len([r for r in caplog.records if "refuses connections" in r.getMessage()]) == 1


def test_who_only_looks_is_let_in_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MOST_LOOKING", 2)

    async def scene() -> None:
        async with open_port(24) as port:
            await fill(port)
            looks = [await port.dial(msgspec.structs.replace(CLIENT, looks=True)) for _ in range(3)]
            answers = [type(await answer(each)) for each in looks]
            assert answers == [HelloResponse, HelloResponse, ErrorResponse]
            port.pass_ms(GREETING_MS)
            for each in looks:
                assert await is_closed(each)
            again = await port.dial(msgspec.structs.replace(CLIENT, looks=True))
            assert isinstance(await answer(again), HelloResponse)

    run(scene)


def test_status_is_told_where_connections_have_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator looks for why nothing is answered."""
    with LocalCluster(1) as cluster:
        monkeypatch.setattr(ProcessLimits, "most_connections", 0)
        monkeypatch.setattr(process_limits(), "_is_refusing", False)  # so that it is so afterwards
        with connect(cluster.servers) as log:
            (row,) = log.status(timeout_ms=10_000)
            assert row.role == "leader"
        with connect(cluster.servers, timeout_ms=500) as log, pytest.raises(LedgerError):
            log.append(b"entry")
        with connect(cluster.servers) as log:
            (row,) = log.status(timeout_ms=10_000)
            assert any("connections are refused" in problem for problem in row.problems)


def clients_have_three_quarters_and_members_the_rest() -> None:
    async def scene() -> None:
        async with open_port(16) as port:
            answers = [type(await answer(await port.dial(CLIENT))) for _ in range(15)]
            assert answers == [HelloResponse] * 12 + [ErrorResponse] * 3
            assert isinstance(await answer(await port.dial(PEER)), HelloResponse)

    run(scene)


def whoever_says_nothing_keeps_no_member_out() -> None:
    """It goes first, whatever port it came to."""

    async def scene() -> None:
        async with open_port(16) as port, open_port(limits=port.limits) as other:
            await fill(port)
            silent = [await other.dial() for _ in range(20)]
            peer = await port.dial(PEER)
            assert isinstance(await answer(peer), HelloResponse)
            assert await is_closed(silent[0])
            assert port.limits.open_connections <= 16 * 7 // 8

    run(scene)


@pytest.mark.parametrize(
    "scenario",
    [clients_have_three_quarters_and_members_the_rest, whoever_says_nothing_keeps_no_member_out],
)
def test_a_member_is_let_in_where_clients_are_not(scenario: Callable[[], None]) -> None:
    scenario()


def test_where_no_members_come_whoever_says_it_is_one_is_a_client() -> None:
    async def scene() -> None:
        async with open_port(16, has_peers=False) as port:
            answers = [type(await answer(await port.dial(PEER))) for _ in range(15)]
            assert answers == [HelloResponse] * 12 + [ErrorResponse] * 3
            assert all(each.is_client for each in port.listener.connections.values())

    run(scene)


async def is_taken(port: Port, hello: Hello, message: Any) -> bool:
    """False: the connection was closed for it."""
    streams = await port.dial(hello)
    assert isinstance(await answer(streams), HelloResponse)
    streams[1].write(bytes_of(message, hello))
    return isinstance(await answer(streams), HelloResponse)


def test_what_only_members_say_is_not_decoded_for_a_client() -> None:
    response = ReadResponse(first_index=0, count=0, ledger_begin_index=0, committed_index=0)
    heartbeat = HeartbeatRequest(term=1, round=1, committed_index=0)

    async def scene() -> None:
        async with open_port() as port:
            for message in (response, heartbeat):
                assert not await is_taken(port, CLIENT, message)
                assert await is_taken(port, PEER, message)
            assert await is_taken(port, CLIENT, StatusRequest(request_id=1))

    run(scene)


def test_the_limit_is_of_all_ports_of_the_process() -> None:
    async def scene() -> None:
        async with open_port(16) as port, open_port(limits=port.limits) as other:
            await fill(port)
            assert isinstance(await answer(await other.dial(CLIENT)), ErrorResponse)

    run(scene)


def test_what_else_the_process_has_open_counts() -> None:
    """A store, its links to other members, whatever an application around it has."""
    limits = ProcessLimits(lambda: 128, lambda: 28 + limits.open_connections)
    within = [limits.enter(number, lambda reason: None) for number in range(128)]
    assert within.count(True) == limits.most_connections == 75
    for number in range(100 * 7 // 8, 128):
        assert limits.is_beyond_all
        limits.leave(number)
    assert not limits.is_beyond_all


def test_what_is_opened_while_connections_come_counts() -> None:
    """Directories are opened behind the first of them, and a member writes new files for ever."""
    files = [4]
    limits = ProcessLimits(lambda: 128, lambda: files[0] + limits.open_connections)
    for number in range(8):
        limits.enter(number, lambda reason: None)
    files[0] = 60
    for number in range(8, 16):
        limits.enter(number, lambda reason: None)
    assert limits.most_connections == (128 - 60) * 3 // 4


def test_where_nothing_can_be_counted_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(path: str) -> list[str]:
        raise OSError(errno.EMFILE, path)

    monkeypatch.setattr(limits_module, "descriptors_in_force", lambda: 100)
    monkeypatch.setattr(os, "listdir", listdir)
    assert limits_module.descriptors_in_use() == 100


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, 65_536),
        (1024, resource.RLIM_INFINITY, 65_536),
        (70_000, 1 << 20, 70_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_a_command_raises_its_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, then: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda number: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda number, both: limits.append(both))
    raise_descriptor_limit()
    assert limits[-1] == (then, hard)


# ---------------------------------------------------------------- the port


def test_a_port_that_is_taken_is_an_error_of_one_sentence() -> None:
    async def scene() -> None:
        async with open_port() as port:
            host, _, number = port.listener.address.rpartition(":")
            other = Listener("the key-value store", port._connect, option="--listen")
            with pytest.raises(ConfigError) as caught:
                await other.open(host, int(number))
            assert str(caught.value) == (
                f"the key-value store cannot listen on {host}:{number}: Address already in use;"
                " another process uses the port: stop it, or change --listen"
            )

    run(scene)


def test_an_orderly_end_sends_what_was_answered() -> None:
    async def scene() -> None:
        async with open_port() as port:
            streams = await port.dial(CLIENT)
            while not port.said:
                await asyncio.sleep(0)
            port.listener.close()
            port.listener.close_connections()
            assert isinstance(await answer(streams), HelloResponse)
            assert await is_closed(streams)

    run(scene)


# ---------------------------------------------------------------- who is it that dialled?

SECRET = b"secret"


class Secretive(Access):
    """Asks twice, by a mechanism for these tests."""

    def greet(self, connection: Connection, hello: Hello, tls: Tls | None) -> Challenging:
        return knows_secret()


def knows_secret() -> Challenging:
    for salt in (b"first", b"second"):
        challenge = Challenge(mechanism="test", data=salt)
        if (yield challenge) != answer_to(challenge):
            raise BadRequest("no such user")


def answer_to(challenge: Challenge) -> bytes:
    return hashlib.sha256(challenge.data + SECRET).digest()


async def answered(streams: Streams, given: Callable[[Challenge], bytes]) -> Any:
    """How many challenges came, and what behind them."""
    count = 0
    while isinstance(message := await answer(streams), Challenge):
        count += 1
        streams[1].write(bytes_of(ChallengeResponse(data=given(message))))
    return count, message


def test_a_client_is_let_in_once_it_has_answered_all_that_it_was_asked() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = Secretive()
            assert await answered(await port.dial(CLIENT), answer_to) == (2, HelloResponse())
            assert port.said == [CLIENT]
            assert len(port.listener.connections) == 1

    run(scene)


def test_who_is_not_asked_sees_no_change() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = Secretive()
            assert await answer(await port.dial(PEER)) == HelloResponse()

    run(scene)


def who_answers_wrong_is_refused() -> None:
    """And whatever else it says is nonsense."""

    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = Secretive()
            count, refusal = await answered(await port.dial(CLIENT), lambda _: b"?")
            assert count == 1
            assert isinstance(refusal, ErrorResponse)
            assert "no such user" in str(error_of(refusal))
            for said in (StatusRequest(), CLIENT, ChallengeResponse(data=bytes(2 * GREETING_BYTES))):
                streams = await port.dial(CLIENT)
                assert isinstance(await answer(streams), Challenge)
                streams[1].write(bytes_of(said))
                assert await is_closed(streams)
            assert port.said == []

    run(scene)


def test_who_answers_wrong_is_refused() -> None:
    who_answers_wrong_is_refused()


def who_was_asked_has_no_longer_than_for_a_greeting() -> None:
    async def scene() -> None:
        async with open_port() as port:
            port.listener.access = Secretive()
            streams = await port.dial(CLIENT)
            assert isinstance(await answer(streams), Challenge)
            port.pass_ms(GREETING_MS - 1000)
            await port.dial()
            port.pass_ms(1001)
            for _ in range(100):
                await asyncio.sleep(0)
            assert port.limits.open_connections == 1

    run(scene)


def test_who_was_asked_has_no_longer_than_for_a_greeting() -> None:
    who_was_asked_has_no_longer_than_for_a_greeting()
