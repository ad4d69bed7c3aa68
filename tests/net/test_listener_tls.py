"""A port that speaks TLS: who comes in, who is refused with which line, and who waits its turn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from quorumlog.config import TlsOptions
from quorumlog.errors import ConfigError
from quorumlog.net import listener
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.encryption import Encryption
from quorumlog.net.frame import Frame, FrameDecoder, encode_frame
from quorumlog.net.handshakes import AT_ONCE, MOST_WAITING, OF_OTHERS
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.limits import GREETING_MS, ProcessLimits
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls, client_context
from quorumlog.wire.client_messages import StatusRequest
from tests.certificates import directory, member, member_valid, options_of, user

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CA = str(directory() / "ca.crt")
RUNS = [uvloop.run, asyncio.run]


def bytes_of(*messages: Any) -> bytes:
    return b"".join(b"".join(encode_frame("default", message)) for message in messages)


HELLO = bytes_of(Hello(role="client"))


def context_of(pair: Any = None, ca: str = CA) -> ssl.SSLContext:
    """Of a client that looks at nothing of its own certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


class Port:
    def __init__(self, tls: Tls | None) -> None:
        self.said: list[Any] = []
        self.connections: list[Connection] = []
        self.limits = ProcessLimits(lambda: 10_000, lambda: 0)
        self.listener = Listener("the test", self._connect, limits=self.limits, tls=tls)
        self.handshakes = LoopTurn.of(asyncio.get_running_loop()).handshakes
        self._skipped_s = 0.0
        self.loop: Any = asyncio.get_running_loop()

    def _connect(self, connection: Connection) -> None:
        self.connections.append(connection)
        connection.on_frame = self._frame

    def _frame(self, connection: Connection, frame: Frame) -> None:
        self.said.append(frame.message)
        if isinstance(frame.message, Hello):
            connection.send(frame.group, HelloResponse())

    async def dial(self, context: ssl.SSLContext | None) -> Streams:
        host, _, number = self.listener.address.rpartition(":")
        return await asyncio.open_connection(
            host, int(number), ssl=context, server_hostname=host if context else None
        )


@contextlib.asynccontextmanager
async def open_port(tls: Tls | None) -> AsyncIterator[Port]:
    port = Port(tls)
    await port.listener.open("127.0.0.1", 0)
    try:
        yield port
    finally:
        port.listener.close()
        port.listener.abort_connections()
        await asyncio.sleep(0)


def tls(**given: Any) -> Tls:
    return Tls(options_of(member("n0"), **given))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def answer_of(reader: asyncio.StreamReader) -> Any:
    decoder = FrameDecoder()
    while True:
        data = await reader.read(65536)
        assert data, "closed without a word"
        decoder.get_buffer()[: len(data)] = data
        if frames := decoder.buffer_updated(len(data)):
            return frames[0].message


async def end_of(reader: asyncio.StreamReader) -> bytes:
    """All that is said until it is closed."""
    found = b""
    with contextlib.suppress(OSError):
        while data := await reader.read(4096):
            found += data
    return found


Body = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=RUNS, ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Body], None]]:
    yield lambda body: request.param(asyncio.wait_for(body(), 30))


def test_who_speaks_tls_is_served(run: Any) -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            reader, writer = await port.dial(client_context(CA, *map(str, user("alice"))))
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)
            (connection,) = port.connections
            assert connection.is_encrypted
            assert ("URI", "quorumlog://orders/user/alice") in connection.certificate["subjectAltName"]
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.close()
            await until(lambda: not port.limits.open_connections)
            assert (port.handshakes.under_way, port.handshakes.waiting) == (0, 0)

    run(body)


def test_what_comes_right_behind_the_handshake_is_taken_in_its_order(run: Any) -> None:
    async def body() -> None:
        asked = [StatusRequest(request_id=number) for number in range(1, 3000)]
        async with open_port(tls()) as port:
            _, writer = await port.dial(context_of())
            writer.write(HELLO + bytes_of(*asked))
            await until(lambda: len(port.said) == 3000)
            assert port.said[1:] == asked

    run(body)


@pytest.mark.parametrize(
    ("context", "options", "reason"),
    [
        (lambda: context_of(member_valid(-30, -1, "n1")), {}, "certificate has expired"),
        (lambda: context_of(member_valid(1, 30, "n1")), {}, "certificate is not yet valid"),
        (lambda: context_of(member("n1", number=1)), {}, "signed by a CA that is not in --tls-ca"),
        (lambda: context_of(), {"client_auth": "required"}, "shows no certificate"),
    ],
    ids=["expired", "not yet valid", "unknown CA", "none"],
)
def test_a_certificate_that_is_not_good_is_named_in_one_line(
    run: Any, caplog: pytest.LogCaptureFixture, context: Any, options: Any, reason: str
) -> None:
    async def body() -> None:
        async with open_port(tls(**options)) as port:
            with contextlib.suppress(OSError):
                reader, writer = await port.dial(context())
                writer.write(HELLO)
                assert not await end_of(reader)
            await until(lambda: not port.limits.open_connections)
            assert not port.said
            assert (port.handshakes.under_way, port.handshakes.waiting) == (0, 0)

    with caplog.at_level(logging.WARNING):
        run(body)
    (line,) = caplog.messages
    assert reason in line


def test_an_older_tls_is_refused(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            context = context_of()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(OSError):
                await port.dial(context)
            await until(lambda: not port.limits.open_connections)

    with caplog.at_level(logging.WARNING):
        run(body)
    (line,) = caplog.messages
    assert "TLS 1.3 is required" in line


def test_plain_on_tls_gets_an_alert_and_nothing_is_parsed(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            reader, writer = await port.dial(None)
            writer.write(HELLO + HELLO)
            assert (await end_of(reader))[:2] == b"\x15\x03"
            await until(lambda: not port.limits.open_connections)
            assert not port.said

    with caplog.at_level(logging.WARNING):
        run(body)
    (line,) = caplog.messages
    assert "the test speaks TLS only" in line


def test_tls_on_a_plain_port_is_named(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with open_port(None) as port:
            with pytest.raises(OSError):
                await port.dial(context_of())
            await until(lambda: not port.limits.open_connections)
            assert not port.said

    with caplog.at_level(logging.WARNING):
        run(body)
    (line,) = caplog.messages
    assert "this is TLS" in line


def test_who_says_nothing_takes_no_place_of_a_handshake_and_goes() -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            silent = [await port.dial(None) for _ in range(AT_ONCE + 1)]
            await until(lambda: port.limits.open_connections == len(silent))
            assert (port.handshakes.under_way, port.handshakes.waiting) == (0, 0)
            reader, writer = await port.dial(context_of())
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)
            real = port.loop.time
            port.loop.time = lambda: real() + GREETING_MS / 1000
            port.listener._overdue()
            await until(lambda: port.limits.open_connections == 1)

    asyncio.run(asyncio.wait_for(body(), 30))


def test_handshakes_that_stand_still_are_few_and_end_and_the_others_get_their_whole_time() -> None:
    begun = b"\x16\x03\x01\x02\x00\x01\x00"
    """Of a handshake, whose rest never comes."""

    async def body() -> None:
        async with open_port(tls()) as port:
            stalled = []
            for _ in range(AT_ONCE):
                stalled.append(await port.dial(None))
                stalled[-1][1].write(begun)
            await until(lambda: port.handshakes.waiting == AT_ONCE - OF_OTHERS)
            assert port.handshakes.under_way == OF_OTHERS
            dialling = port.loop.create_task(port.dial(context_of()))
            await until(lambda: port.handshakes.waiting == AT_ONCE - OF_OTHERS + 1)
            real = port.loop.time
            port.loop.time = lambda: real() + GREETING_MS / 1000
            port.listener._overdue()
            await until(lambda: port.handshakes.waiting == 1)
            port.loop.time = lambda: real() + 2 * GREETING_MS / 1000
            port.listener._overdue()
            reader, writer = await dialling
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)

    asyncio.run(asyncio.wait_for(body(), 30))


def test_a_handshake_that_is_cut_off_ends_with_a_reason(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: failures.append(told))
        async with open_port(tls()) as port:
            reader, writer = await port.dial(None)
            writer.write(b"\x16\x03\x01")
            await until(lambda: port.handshakes.under_way == 1)
            (waiting,) = port.listener._silent.values()
            encryption: Any = waiting.close.__self__  # type: ignore[attr-defined]
            await until(lambda: not encryption._first)
            waiting.close()  # as it is once its time is over
            assert not await end_of(reader)
            await until(lambda: not port.listener._encrypting)
        gc.collect()
        assert not failures
        assert "during the TLS handshake" in caplog.text or "timed out" in caplog.text

    run(body)


def test_a_connection_that_is_lost_as_its_handshake_begins_ends_with_a_reason(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(turns: int) -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: failures.append(told))
        async with open_port(tls()) as port:
            reader, writer = await port.dial(None)
            writer.write(b"\x16\x03\x01")
            await until(lambda: port.handshakes.under_way == 1)
            (waiting,) = port.listener._silent.values()
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.close()
            assert not await end_of(reader)
            await until(lambda: not port.listener._encrypting)
        gc.collect()
        assert not failures

    for turns in range(4):
        run(lambda turns=turns: body(turns))


def test_a_connection_that_is_lost_as_its_handshake_ends_is_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = Encryption._start

    async def lost(encryption: Encryption, tcp: asyncio.Transport, *given: Any) -> Any:
        transport = await starting(encryption, tcp, *given)
        tcp.abort()
        await asyncio.sleep(0)
        return transport

    monkeypatch.setattr(Encryption, "_start", lost)

    async def body() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: failures.append(told))
        async with open_port(tls()) as port:
            with contextlib.suppress(OSError):
                reader, _ = await port.dial(client_context(CA, *map(str, user("alice"))))
                await end_of(reader)
            await until(lambda: not port.listener._encrypting)
            assert not port.limits.open_connections
        gc.collect()
        assert not failures

    run(body)


def test_more_than_may_wait_are_refused_with_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            for number in range(OF_OTHERS + MOST_WAITING):
                port.handshakes.come(number, lambda: None, is_member=False)
            for _ in range(3):
                reader, writer = await port.dial(None)
                writer.write(b"\x16\x03\x01")
                assert not await end_of(reader)
            assert len([each for each in caplog.messages if "too many wait for a TLS" in each]) == 1
            assert not port.limits.problem
            for number in range(OF_OTHERS + MOST_WAITING):
                port.handshakes.leave(number)

    asyncio.run(asyncio.wait_for(body(), 30))


def test_what_waits_to_be_sent_is_counted_below_the_encryption_too(run: Any) -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            reader, writer = await port.dial(context_of())
            writer.write(HELLO)
            await answer_of(reader)
            writer.transport.pause_reading()
            (connection,) = port.connections
            connection.is_client = False
            size = 32 << 20
            connection.write([bytes(size)])
            connection.flush()
            await asyncio.sleep(0)
            assert connection.unsent_bytes > size // 2
            assert connection.acknowledged_bytes <= connection.sent_bytes - connection.unsent_bytes
            writer.transport.resume_reading()
            taken = 0
            while taken < size:
                taken += len(await reader.read(1 << 20))
            await until(lambda: connection.acknowledged_bytes == connection.sent_bytes)

    run(body)


def a_root_that_is_withdrawn_lets_nobody_in_again(run: Any = asyncio.run) -> None:
    """Connections that stand go on."""
    other = directory(number=1) / "ca.crt"
    both = directory() / "both.crt"
    both.write_bytes(Path(CA).read_bytes() + other.read_bytes())
    foreign = context_of(member("n1", number=1))
    options = replace(options_of(member("n0")), ca=str(both))

    async def body() -> None:
        read = Tls(options)
        async with open_port(read) as port:
            reader, writer = await port.dial(foreign)
            session = writer.get_extra_info("ssl_object").session
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)
            both.write_bytes(Path(CA).read_bytes())
            read.reload()
            again, to_it = await port.dial(foreign)
            assert session is None or not session.has_ticket
            said = b""
            with contextlib.suppress(OSError):
                to_it.write(HELLO)
                said = await again.read(1)
            assert not said
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)
            assert len(port.said) == 2

    run(body())


def test_a_root_that_is_withdrawn_lets_nobody_in_again() -> None:
    for runs in RUNS:
        a_root_that_is_withdrawn_lets_nobody_in_again(runs)


def test_certificates_change_under_load_and_nobody_is_refused(run: Any, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("n0.crt", "n0.key")]
    pairs = [member("n0"), member_valid(0, 100, "n0")]

    def use(number: int) -> None:
        for source, path in zip(pairs[number % 2], paths, strict=True):
            shutil.copy(source, path)

    use(0)

    async def body() -> None:
        read = Tls(TlsOptions(*map(str, paths), CA))
        seen = set()

        async def ask(port: Port) -> None:
            reader, writer = await port.dial(context_of())
            seen.add(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)
            writer.close()

        async with open_port(read) as port:
            for number in range(1, 6):
                await asyncio.gather(*(ask(port) for _ in range(10)))
                use(number)
                read.reload()
                await asyncio.gather(*(ask(port) for _ in range(10)))
            assert len(seen) == 2
            assert port.limits.refused == 0

    run(body)


def test_many_who_come_at_once_are_all_let_in(run: Any) -> None:
    async def body() -> None:
        most = 0

        async def ask(port: Port) -> None:
            nonlocal most
            reader, writer = await port.dial(context)
            most = max(most, port.handshakes.under_way)
            writer.write(HELLO)
            assert isinstance(await answer_of(reader), HelloResponse)
            writer.close()

        context = context_of()
        async with open_port(tls()) as port:
            await asyncio.gather(*(ask(port) for _ in range(200)))
            assert most <= OF_OTHERS
            assert len(port.said) == 200

    run(body)


@pytest.mark.parametrize("has_tls", [True, False])
def test_a_plain_port_that_others_reach_is_warned_of(
    has_tls: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine itself stands for the others."""
    monkeypatch.setattr(listener, "is_loopback", lambda host: False)

    async def body() -> None:
        async with open_port(tls() if has_tls else None) as port:
            words = f"the test at {port.listener.address} is reachable from other machines without TLS"
            found = [each for each in listener.tls_problems() if each.startswith(words)]
            assert len(found) == (not has_tls)
            assert [each for each in caplog.messages if each.startswith(words)] == found
        assert not [each for each in listener.tls_problems() if "the test" in each]

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(body(), 30))


def test_nothing_is_left_where_the_port_closes_during_a_handshake() -> None:
    async def body() -> None:
        async with open_port(tls()) as port:
            _, writer = await port.dial(None)
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
            await until(lambda: port.handshakes.under_way)
            port.listener.close()
            await until(lambda: not port.limits.open_connections)
            assert not port.handshakes.under_way

    asyncio.run(asyncio.wait_for(body(), 30))


def test_a_second_port_that_is_the_first_is_refused_by_its_option() -> None:
    async def opened() -> None:
        tls = Tls(options_of(member("n0"), listen="127.0.0.1:9", peers="prefer"))
        port = Listener("the test", lambda connection: None, tls=tls, second="listen")
        await port.open("127.0.0.1", 9)

    with pytest.raises(ConfigError, match=r"give \[tls\] listen another port"):
        asyncio.run(opened())
