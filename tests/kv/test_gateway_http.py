"""What the gateway takes for a request of HTTP, and what it does with all else; without a store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from quorumlog.kv.etcd import gateway as gateway_module
from quorumlog.kv.etcd.gateway import MAX_AHEAD_BYTES, MAX_BODY_BYTES, EtcdGateway, _GatewayClient
from quorumlog.net import limits as limits_module
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame
from quorumlog.net.limits import GREETING_BYTES, GREETING_MS
from quorumlog.net.listener import Listener

BUFFER_BYTES = gateway_module.BUFFER_BYTES


class Port:
    """A gateway whose answers say what was asked, and whose clock is set by hand."""

    def __init__(self) -> None:
        self.gateway = EtcdGateway(MagicMock(), "127.0.0.1:1", "127.0.0.1:2", "n0")
        self.listener = self.gateway._listener
        loop: Any = asyncio.get_running_loop()
        real, self._skipped_s = loop.time, 0.0
        loop.time = lambda: real() + self._skipped_s

    def pass_ms(self, ms: float) -> None:
        self._skipped_s += ms / 1000

    async def dial(self, said: bytes = b"") -> Client:
        host, _, number = self.listener.address.rpartition(":")
        client = Client(*await asyncio.open_connection(host, int(number)))
        client.say(said)
        return client


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    async def say_slowly(self, said: bytes, piece_bytes: int) -> None:
        """In pieces that the gateway is given one by one."""
        for at in range(0, len(said), piece_bytes):
            self.say(said[at : at + piece_bytes])
            await self.writer.drain()
            await turns()

    async def head(self) -> tuple[int, dict[str, str]]:
        """(status, headers); (0, ...): it is closed."""
        try:
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, {}
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    async def answer(self) -> tuple[int, Any]:
        """(status, what it says); (0, None): it is closed."""
        status, headers = await self.head()
        if status == 0:
            return 0, None
        return status, json.loads(await self._reader.readexactly(int(headers["content-length"])))

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return await self._reader.read(1) == b""
        return True


async def turns() -> None:
    """Of the loop: those of a read, and of what is made of it."""
    for _ in range(6):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def open_port() -> AsyncIterator[Port]:
    port = Port()
    await port.listener.open("127.0.0.1", 0)
    try:
        yield port
    finally:
        port.listener.close()
        port.listener.abort_connections()
        await turns()


@pytest.fixture(autouse=True)
def _answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(self: _GatewayClient, method: str, path: str, token: str, body: bytes) -> None:
        if path == "/never":
            await asyncio.Event().wait()
        if path == "/fails":
            raise RuntimeError("it is 4711")
        text = body.decode("latin-1")
        await self._tell(200, json.dumps([method, path, token, text if len(text) < 99 else len(text)]))

    monkeypatch.setattr(_GatewayClient, "_answer", answer)


def run(scene: Callable[[Port], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20), open_port() as port:
            await scene(port)

    # Its clock can be set: uvloop's cannot.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(bounded())


def post(body: bytes = b"", path: str = "/a", *headers: str, length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /g?x HTTP/1.1\r\nHost: a\r\nAuthorization: me\r\n\r\n"
UPGRADE = ("Connection: upgrade", "Upgrade: websocket")
REQUESTS = [
    (post(b"one"), ["POST", "/a", "", "one"]),
    (post(), ["POST", "/a", "", ""]),
    (GET, ["GET", "/g", "me", ""]),
    (b"\r\n\r\n" + GET, ["GET", "/g", "me", ""]),
    (CHUNKED + b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n", ["POST", "/c", "", "abcd"]),
    (CHUNKED + b"6\r\n\r\n\r\n\r\n\r\n0\r\nTrailer: a\r\n\r\n", ["POST", "/c", "", "\r\n\r\n\r\n"]),
    (CHUNKED + b"0\r\n\r\n", ["POST", "/c", "", ""]),
    (post(b"two", "/a", *UPGRADE), ["POST", "/a", "", "two"]),
    (post(b"x", "/a", "Content-Encoding: gzip"), ["POST", "/a", "", "x"]),
    (post(b"three", "/a", "Connection: close"), ["POST", "/a", "", "three"]),
]


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 50, 1 << 16])
def test_requests_are_answered_in_their_order_however_they_come(piece_bytes: int) -> None:
    async def scene(port: Port) -> None:
        client = await port.dial()
        said = b"".join(each for each, _ in REQUESTS)
        await client.say_slowly(said, piece_bytes)
        for _, expected in REQUESTS:
            assert await client.answer() == (200, expected)
        assert await client.is_closed()

    run(scene)


def test_an_answer_tells_of_no_software_but_ours() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(GET)
        status, headers = await client.head()
        assert (status, headers["content-type"]) == (200, "application/json")
        assert "python" not in str(headers) and "aiohttp" not in str(headers)

    run(scene)


@pytest.mark.parametrize("size_bytes", [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, 1 << 20, MAX_BODY_BYTES])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_any_size_up_to_the_limit_is_taken(size_bytes: int, is_chunked: bool) -> None:
    body = b"x" * size_bytes
    chunks = CHUNKED + (b"%x\r\n%s\r\n" % (size_bytes, body) if body else b"") + b"0\r\n\r\n"

    async def scene(port: Port) -> None:
        client = await port.dial((chunks if is_chunked else post(body)) + GET)
        told = size_bytes if size_bytes > 99 else "x" * size_bytes
        assert await client.answer() == (200, ["POST", "/c" if is_chunked else "/a", "", told])
        assert await client.answer() == (200, ["GET", "/g", "me", ""])

    run(scene)


def test_a_chunk_may_be_a_byte() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n" + GET)
        assert await client.answer() == (200, ["POST", "/c", "", 100_000])
        assert await client.answer() == (200, ["GET", "/g", "me", ""])

    run(scene)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_above_the_limit_is_refused_while_it_comes(is_chunked: bool) -> None:
    body = b"x" * (MAX_BODY_BYTES + 1)

    async def scene(port: Port) -> None:
        client = await port.dial()
        client.say(CHUNKED + b"%x\r\n" % (2 * len(body)) if is_chunked else post(length=len(body)), body)
        status, told = await client.answer()
        assert (status, told["code"], told["message"]) == (400, 3, "etcdserver: request is too large")
        assert await client.is_closed()

    run(scene)


def test_a_client_that_waits_is_told_to_go_on() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(post(b"", "/a", "Expect: 100-continue", length=2))
        assert await client.head() == (100, {})
        client.say(b"ab")
        assert await client.answer() == (200, ["POST", "/a", "", "ab"])
        client.say(post(b"", "/a", "Expect: 100-continue", length=MAX_BODY_BYTES + 1))
        assert (await client.answer())[0] == 400

    run(scene)


def test_the_answer_to_head_has_no_body() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(GET.replace(b"GET", b"HEAD") + GET)
        assert (await client.head())[0] == 200
        assert await client.answer() == (200, ["GET", "/g", "me", ""])

    run(scene)


def test_a_connection_of_http_1_0_is_closed_behind_its_answer() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert await client.is_closed()

    run(scene)


NO_REQUESTS = [
    b"QLG\x01" + bytes(20),
    b"\x16\x03\x01\x02\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    b"GET /\r\n\r\n",
    b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{}",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    CHUNKED + b"zz\r\n",
]


@pytest.mark.parametrize("said", NO_REQUESTS, ids=lambda said: str(bytes(said[-20:])))
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_no_request_is_told_so_at_once(
    said: bytes, is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As JSON, and without its own words, which may be a password."""

    async def scene(port: Port) -> None:
        client = await port.dial(b"" if is_first else GET)
        client.say(said)
        if not is_first:
            assert (await client.answer())[0] == 200
        status, told = await client.answer()
        assert (status, told["code"]) == (400, 3) and told["error"] == told["message"]
        assert await client.is_closed()

    caplog.set_level(logging.DEBUG)
    run(scene)
    assert "not an HTTP request" in caplog.text
    assert "Traceback" not in caplog.text and "no header" not in caplog.text


@pytest.mark.parametrize("said", [b"G", b"GET / HTTP/1.1\r\nHost: a\r\n", post(b"a", length=2), CHUNKED])
def test_a_request_that_is_cut_off_is_refused(said: bytes) -> None:
    async def scene(port: Port) -> None:
        for before in (b"", GET):
            client = await port.dial(before + said)
            client.writer.write_eof()
            if before:
                assert (await client.answer())[0] == 200
            assert (await client.answer())[0] == 400
            assert await client.is_closed()

    run(scene)


def test_a_client_that_says_no_more_is_told_all_that_it_asked() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(GET + post(b"x") + GET)
        client.writer.write_eof()
        assert [(await client.answer())[0] for _ in range(3)] == [200] * 3
        assert await client.is_closed()
        client = await port.dial()
        client.writer.write_eof()
        assert await client.is_closed()

    run(scene)


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("line_bytes", [100, 9_000, GREETING_BYTES])
def test_a_head_has_a_bound(is_first: bool, line_bytes: int) -> None:
    lines = (b"a: " + b"b" * line_bytes + b"\r\n") * (GREETING_BYTES // line_bytes + 1)

    async def scene(port: Port) -> None:
        client = await port.dial(b"" if is_first else GET)
        if not is_first:
            assert (await client.answer())[0] == 200
        client.say(b"GET / HTTP/1.1\r\nHost: a\r\n" + lines)
        assert (await client.answer())[0] == 400
        assert await client.is_closed()

    run(scene)


def test_a_head_that_does_not_come_is_waited_for_as_long_as_a_greeting() -> None:
    async def scene(port: Port) -> None:
        silent, half = await port.dial(), await port.dial(GET[:20])
        greeted = await port.dial(GET + GET[:20])
        assert (await greeted.answer())[0] == 200
        port.pass_ms(GREETING_MS + 1)
        assert await silent.is_closed() and await half.is_closed()
        greeted.say(GET[20:])
        assert (await greeted.answer())[0] == 200

    run(scene)


@pytest.mark.parametrize("said", [b"x", b"1x", b"1\r\naa", b"1;" + b"x" * GREETING_BYTES])
def test_chunks_that_are_broken_are_told_so_whatever_was_read_before(said: bytes) -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(CHUNKED + b"1\r\na\r\n")
        await turns()
        client.say(said)
        assert (await client.answer())[0] == 400
        assert await client.is_closed()

    run(scene)


def test_what_comes_behind_a_request_has_a_bound() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(post(path="/never"))
        client.say(bytes(3 * MAX_AHEAD_BYTES))
        assert (await client.answer())[0] == 400
        assert await client.is_closed()

    run(scene)


def test_what_has_come_of_requests_is_counted_until_they_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits_module, "UNFINISHED_BYTES", 1 << 20)

    async def scene(port: Port) -> None:
        half = post(b"x" * 900_000, length=900_001)
        whole = await port.dial(half + b"x")
        assert (await whole.answer())[0] == 200
        ends = [asyncio.create_task((await port.dial(half)).is_closed()) for _ in range(3)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        whole.say(GET)
        assert (await whole.answer())[0] == 200, "it holds nothing"
        for end in ends:
            end.cancel()

    run(scene)


# ---------------------------------------------------------------- errors


def test_a_request_that_raises_ends_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(port: Port) -> None:
        other = await port.dial(GET)
        client = await port.dial(post(path="/fails"))
        status, told = await client.answer()
        assert (status, told["code"]) == (400, 3)
        assert await client.is_closed()
        other.say(GET)
        assert [(await other.answer())[0] for _ in range(2)] == [200, 200]

    run(scene)
    assert "its message cannot be processed: RuntimeError" in caplog.text


def test_what_the_member_itself_raises_is_not_taken_for_the_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = AssertionError("an invariant")

    def contain(error: Exception, client: object) -> None:
        raise ours

    monkeypatch.setattr(gateway_module, "contain", contain)

    async def scene(port: Port) -> None:
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        client = await port.dial(post(path="/fails"))
        assert await client.is_closed()
        assert [context["exception"] for context in raised] == [ours]

    run(scene)


def test_a_client_that_goes_while_it_waits_is_forgotten() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial(post(b"x" * 1000, "/never"))
        while not port.gateway.waiting_bytes:
            await asyncio.sleep(0)
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()  # at once: a client that only says no more is answered
        while port.gateway.waiting_bytes or port.listener.connections:
            await asyncio.sleep(0)

    run(scene)


def test_requests_wait_for_a_client_that_does_not_read_its_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size_bytes, answered = 3 << 20, []

    async def answer(self: _GatewayClient, method: str, path: str, token: str, body: bytes) -> None:
        answered.append(path)
        await self._tell(200, json.dumps("x" * size_bytes))

    monkeypatch.setattr(_GatewayClient, "_answer", answer)

    async def scene(port: Port) -> None:
        client = await port.dial(GET * 20)
        while not port.listener.connections:
            await asyncio.sleep(0)
        (connection,) = port.listener.connections.values()
        while not connection.is_full:
            await asyncio.sleep(0)
        for _ in range(500):
            await asyncio.sleep(0)
        assert connection.unsent_bytes < 5 * size_bytes, f"{len(answered)} requests are answered"
        for _ in range(20):
            assert (await client.answer())[0] == 200

    run(scene)


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_a_connection_closed_before_its_request_is_served_is_forgotten(
    iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted: list[bool] = []
    real = Listener._greeted

    def seen(self: Listener, connection: Connection, frame: Frame) -> None:
        greeted.append(connection.closed)
        real(self, connection, frame)

    monkeypatch.setattr(Listener, "_greeted", seen)

    async def scene(port: Port) -> None:
        client = await port.dial(GET[:-1])
        while not any(each.session for each in port.listener._silent):
            await asyncio.sleep(0)
        (connection,) = port.listener._silent
        assert connection.session is not None
        connection.session.frame(gateway_module._frame_of(GET[-1:]))  # its handler is called soon
        for _ in range(iterations):
            await asyncio.sleep(0)
        if greeted:
            return
        port.pass_ms(GREETING_MS + 1)
        port.listener._overdue()
        assert await client.is_closed()
        await turns()
        assert not port.listener.connections and not any(greeted)

    run(scene)


def test_a_body_that_trickles_in_is_as_old_as_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "UNFINISHED_BYTES", 1 << 20)
    now_s = [0.0]

    async def scene(port: Port) -> None:
        monkeypatch.setattr(LoopTurn.of(asyncio.get_running_loop()), "clock", lambda: now_s[0])
        slow = [await port.dial(post(b"x" * 400_000, length=900_000)) for _ in range(4)]

        def sizes() -> list[int]:
            return [each.decoder.unfinished_bytes for each in port.listener.connections.values()]

        while sum(sizes()) < 1_600_000:
            await asyncio.sleep(0)
        for rounds in range(1, 5):
            now_s[0] += limits_module.UNFINISHED_S / 2
            for each in slow:
                each.say(b"x")
            while len(sizes()) == 4 and sum(sizes()) < 1_600_000 + 4 * rounds:
                await asyncio.sleep(0)
        assert len(sizes()) < 4 and sum(sizes()) <= 1 << 20

    run(scene)


def test_clients_share_the_time_that_chunks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of all their bodies is parsed in an iteration of the loop, not one of each."""
    parsed_bytes = [0]
    real = _GatewayClient._taken

    def taken(self: _GatewayClient, size_bytes: int) -> bytes:
        data = real(self, size_bytes)
        parsed_bytes[0] += len(data)
        return data

    monkeypatch.setattr(_GatewayClient, "_taken", taken)

    async def scene(port: Port) -> None:
        clients = [await port.dial(CHUNKED) for _ in range(10)]
        while len(port.listener.connections) < len(clients):
            await asyncio.sleep(0)
        most, said = 0, b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
        for connection in list(port.listener.connections.values()):
            assert connection.session is not None
            connection.session.frame(gateway_module._frame_of(said))
        until_bytes = parsed_bytes[0] + len(clients) * len(said)
        while (before := parsed_bytes[0]) < until_bytes:
            await asyncio.sleep(0)
            most = max(most, parsed_bytes[0] - before)
        assert most <= gateway_module.PIECE_BYTES
        for client in clients:
            assert await client.answer() == (200, ["POST", "/c", "", 10_000])

    run(scene)


def test_a_client_without_a_request_has_a_small_buffer() -> None:
    async def scene(port: Port) -> None:
        client = await port.dial()
        head = GET[:-2] + b"a: " + b"b" * 7_000 + b"\r\nc: " + b"d" * 7_000 + b"\r\n\r\n"
        for said in (post(b"x" * MAX_BODY_BYTES), head, head):
            client.say(said)
            assert (await client.answer())[0] == 200
        (connection,) = port.listener.connections.values()
        assert len(connection.decoder.get_buffer()) == gateway_module.FIRST_BUFFER_BYTES
        greeting = await port.dial(head[:-1])
        while not (silent := [each for each in port.listener._silent if each.session]):
            await asyncio.sleep(0)
        while silent[0].decoder.unfinished_bytes < len(head) - 1:
            await asyncio.sleep(0)
        assert len(silent[0].decoder.get_buffer()) <= GREETING_BYTES
        greeting.say(head[-1:])
        assert (await greeting.answer())[0] == 200

    run(scene)
