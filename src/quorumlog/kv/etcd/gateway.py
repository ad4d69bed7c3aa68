"""EtcdGateway: etcd's JSON gateway on a port of a member: HTTP, and protobuf's own JSON mapping."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, cast

from aiohttp import StreamReader, web
from google.protobuf.message import Message

from quorumlog.client_guard import contain
from quorumlog.errors import NO_RIGHT, LedgerError, NotAuthenticated, Overloaded, ProtocolViolation
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.administration import VERSION
from quorumlog.kv.etcd.errors import Code, RpcError, error_of
from quorumlog.kv.etcd.handlers import METHODS, Handlers, Method
from quorumlog.kv.etcd.json_mapping import json_of, parsed
from quorumlog.kv.etcd.port import EtcdClient, EtcdEndpoint
from quorumlog.kv.etcd.watching import WatchStream
from quorumlog.kv.requests import StatusAnswer
from quorumlog.net.connection import Connection, FrameHandler, LastWords
from quorumlog.net.frame import Frame
from quorumlog.net.limits import GREETING_BYTES
from quorumlog.stray_log import is_loopback

FIRST_BUFFER_BYTES, BUFFER_BYTES = 4 << 10, 64 << 10
MAX_AHEAD_BYTES = 64 << 10
"""Most bytes received after a request that is not answered yet."""
PIECE_BYTES = 16 << 10
"""Bytes passed to aiohttp at a time: parsing 16 KiB of one-byte chunks takes 3 ms. Of the chunked bodies
of all clients, one piece is parsed an iteration of the loop."""
MAX_BODY_BYTES = 4 << 20
"""Most bytes of a body: a request of 1.5 MiB in base64."""
MOST_WAITING_BYTES = 64 << 20
"""Most bytes of all clients' unanswered requests."""
HEALTH_TIMEOUT_S = 2.0
WATCH_PATH, LOGIN_PATH, KEEP_ALIVE_PATH = "/v3/watch", "/v3/auth/authenticate", "/v3/lease/keepalive"
PATHS: dict[str, Method] = {path: method for method in METHODS.values() for path in method.paths}
"""Paths of the unary calls."""
TOKEN = "authorization"
"""Header with a client's token."""
HEADERS = {"Content-Type": "application/json", "Server": "quorumlog"}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HTTP_STATUS = {
    Code.NOT_FOUND: 404,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}
NO_HTTP = "not an HTTP request"
"""Without the parser's message, which quotes the request, and its body if Content-Length is wrong."""
CUT_OFF = f"{NO_HTTP}: it ends before it is complete"
FOREVER_S = 1e9
MOST_TURNS = 100
"""Iterations of the loop until aiohttp calls the handler of a request; it takes two."""
MOST_PARSE_ERRORS = 50
"""More than aiohttp queues before it pauses reading: 32."""
_silent = logging.Logger("aiohttp")
_silent.disabled = True  # its messages quote requests


class EtcdGateway(EtcdEndpoint):
    name = "etcd's JSON gateway"
    second = "gateway_listen"
    waiting_bytes = 0
    """Bytes of requests that are being answered."""

    @cached_property
    def chunks(self) -> asyncio.Lock:
        """Held while a piece of a chunked body is parsed, and until the next iteration of the loop."""
        return asyncio.Lock()

    def _decoder(self) -> _GatewayClient:
        return _GatewayClient(self)

    def _begin(self, connection: Connection, greeted: FrameHandler) -> None:
        client = connection.decoder
        assert isinstance(client, _GatewayClient), client
        client.begin(connection, greeted)

    def _connect(self, connection: Connection) -> None:
        """Called with the first frame; the session exists since the first bytes."""

    def _last_words(self) -> LastWords:
        return _last_words

    def _url_of(self, status: StatusAnswer) -> str:
        return status.etcd_gateway


class _GatewayCalls(EtcdClient):
    @property
    def is_private(self) -> bool:
        """Connections of the same machine are private: they do not leave it."""
        return super().is_private or is_loopback(self._connection.peer_host)


class _Stage(Enum):
    """State of the current request."""

    HEAD = 0
    WAITING = 1
    """The head is complete; aiohttp calls the handler within a few iterations of the loop."""
    BODY = 2
    ANSWER = 3


class _HttpTransport(asyncio.Transport):
    """The transport of aiohttp's protocol. It writes to a `Connection`; `_GatewayClient` passes the
    received bytes to the protocol."""

    def __init__(self, client: _GatewayClient, connection: Connection) -> None:
        super().__init__()
        self._client = client
        self._connection = connection

    def write(self, data: Any) -> None:
        self._client.send(data)

    def close(self) -> None:
        self._connection.close()

    def is_closing(self) -> bool:
        return self._connection.closed

    def pause_reading(self) -> None:
        # Bodies are read at once, so its buffers are never full: its queue of parse errors is.
        self._client.violate(ProtocolViolation(NO_HTTP))

    def resume_reading(self) -> None:
        """Does nothing: the transport never pauses reading."""


class _GatewayClient:
    """The session of one client, the `Decoder` of its connection, and the `EtcdCarrier` of its calls:
    one request at a time, or a watch until it ends.

    aiohttp receives the head of a request, then its body, and the next head once that request is
    answered. So every byte that it buffers is counted here, and bytes that it writes before it calls
    `_serve` are an error response of its own."""

    missing_bytes = 1024

    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._connection: Connection
        """Set by `begin`, like the next three."""
        self._greeted: FrameHandler | None
        """Called when the head of the first request is complete."""
        self._client: _GatewayCalls
        self._http: web.RequestHandler
        self._request: web.BaseRequest
        """The last request whose handler was called."""
        self._response: web.StreamResponse = web.Response()
        """The last response that was sent."""
        self._stage = _Stage.HEAD
        self._ahead = bytearray()
        """Received bytes that are not passed to aiohttp yet."""
        self._received = asyncio.Event()
        self._head_bytes = 0
        """Bytes passed to aiohttp: of the head, or of chunks since the last byte of data."""
        self._end = b""
        """The last of those bytes, which may be the beginning of an empty line."""
        self._body = bytearray()  # it may arrive byte by byte
        self._is_watching = self._says_no_more = False
        self._number = 0
        self._held_bytes = 0

    def begin(self, connection: Connection, greeted: FrameHandler) -> None:
        self._connection = connection
        self._greeted = greeted
        self._client = _GatewayCalls(self._gateway, connection, self)
        serve = web.Server(
            self._serve,
            handler_cancellation=True,
            keepalive_timeout=FOREVER_S,
            lingering_time=0,
            auto_decompress=False,
            access_log=None,
            logger=_silent,
        )
        self._http = serve()
        self._http.connection_made(_HttpTransport(self, connection))
        connection.session = self
        connection.at_end = self._at_end

    # ---------------------------------------------------------------- Decoder

    @property
    def unfinished_bytes(self) -> int:
        is_whole = self._stage is _Stage.ANSWER
        return 0 if is_whole else self._head_bytes + len(self._body) + len(self._ahead)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> list[Frame]:
        data = bytes(self._buffer[:count])
        most_bytes = BUFFER_BYTES if self._stage is _Stage.BODY else GREETING_BYTES
        if count == len(self._buffer) < most_bytes:
            self._buffer = memoryview(bytearray(most_bytes))
        return [_frame_of(data)]

    # ---------------------------------------------------------------- Session

    def frame(self, frame: Frame) -> None:
        self._ahead += cast(bytes, frame.message)
        self._process()

    def _at_end(self) -> list[Frame]:
        """The client has ended its side: answer its requests; a watch ends now."""
        self._says_no_more = True
        self._process()
        return []

    def lost(self) -> None:
        self._http.connection_lost(None)
        self._client.close()
        self._ahead.clear()
        self._body.clear()

    def writable(self) -> None:
        """Does nothing: a watch waits for room by itself."""

    # ---------------------------------------------------------------- what comes

    def _process(self) -> None:
        """Pass aiohttp the head of the next request. Raises ProtocolViolation."""
        if not self._head_bytes and self._stage is _Stage.HEAD:  # empty lines between requests
            self._ahead = self._ahead.lstrip(b"\r\n")
        while self._ahead and self._stage is _Stage.HEAD and not self._connection.closed:
            self._http.data_received(self._block())
            self._check_head_size()
            if not self._end:
                self._stage = _Stage.WAITING
                self._expect_handler(MOST_TURNS)
        self._limit_ahead()
        self._received.set()
        if self._says_no_more and (self._is_watching or self._stage is _Stage.HEAD):
            if self._head_bytes:
                raise ProtocolViolation(CUT_OFF)
            self._connection.close()

    def _expect_handler(self, turns: int) -> None:
        """Refuse a head that aiohttp neither serves nor refuses, such as the preface of HTTP/2."""
        if self._stage is not _Stage.WAITING or self._connection.closed:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._expect_handler, turns - 1)
        else:
            self.violate(ProtocolViolation(NO_HTTP))

    def _block(self) -> bytes:
        """The next bytes, up to an empty line: heads and chunked bodies end with one."""
        end = (self._end + self._ahead[:PIECE_BYTES]).find(b"\r\n\r\n")
        data = self._taken(PIECE_BYTES if end < 0 else end + 4 - len(self._end))
        self._end = (self._end + data)[-3:] if end < 0 else b""
        self._head_bytes += len(data)
        return data

    def _taken(self, size_bytes: int) -> bytes:
        data = bytes(self._ahead[: min(size_bytes, PIECE_BYTES)])
        del self._ahead[: len(data)]
        return data

    def _check_head_size(self) -> None:
        if self._head_bytes > GREETING_BYTES:
            raise ProtocolViolation(f"{NO_HTTP}: a head of more than {GREETING_BYTES} bytes")

    def _limit_ahead(self) -> None:
        """Pause reading while too much is received. Raises ProtocolViolation."""
        is_much = len(self._ahead) > MAX_AHEAD_BYTES
        if is_much and self._stage is _Stage.ANSWER:
            raise ProtocolViolation(f"{MAX_AHEAD_BYTES} bytes after a request that is not answered yet")
        if is_much != self._connection.is_held:
            self._connection.is_held = is_much
            if is_much:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    async def _read(self, request: web.BaseRequest) -> bytes | None:
        """The body; None: it is too large. Raises ProtocolViolation."""
        content, missing_bytes = request.content, request.content_length
        if (missing_bytes or 0) > MAX_BODY_BYTES:
            return None
        if request.headers.get("expect", "").lower() == "100-continue" and request.version[1]:
            self._connection.write([CONTINUE])
        self._stage, self._head_bytes = _Stage.BODY, 0
        while not content.is_eof():
            while not self._ahead:
                if self._says_no_more:
                    raise ProtocolViolation(CUT_OFF)
                self._received.clear()
                await self._received.wait()
            if missing_bytes is None:
                async with self._gateway.chunks:
                    self._chunks(content)
                    await asyncio.sleep(0)
            else:
                data = self._taken(missing_bytes)
                missing_bytes -= len(data)
                self._http.data_received(data)
            if self._connection.closed:
                raise ConnectionError(NO_HTTP)
            try:
                read = content.read_nowait()
            except web.RequestPayloadError:
                raise ProtocolViolation(NO_HTTP) from None
            self._body += read
            if len(self._body) > MAX_BODY_BYTES:
                return None
            if read:
                self._head_bytes = 0
            self._check_head_size()
            self._limit_ahead()
            if self._ahead and missing_bytes:
                await asyncio.sleep(0)  # a piece an iteration of the loop
        body = bytes(self._body)
        self._body.clear()
        self._stage, self._head_bytes = _Stage.ANSWER, 0
        if len(self._buffer) > FIRST_BUFFER_BYTES:
            self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._limit_ahead()
        self._connection.note_unfinished(is_new=True)
        return body

    def _chunks(self, content: StreamReader) -> None:
        """Pass aiohttp a piece of a chunked body."""
        self._http.data_received(self._block())
        # Where the framing of chunks is invalid, aiohttp does not fail the read. It queues an error for
        # each piece from there on, and pauses reading when the queue is full.
        is_last = not self._ahead and not content.is_eof()
        for _ in range(MOST_PARSE_ERRORS if is_last else 0):
            self._http.data_received(b"")

    def send(self, data: bytes) -> None:
        """Send bytes from aiohttp."""
        if self._stage is _Stage.ANSWER:
            self._connection.write([data])
        else:  # its own response to a parse error
            self.violate(ProtocolViolation(NO_HTTP))

    # ---------------------------------------------------------------- EtcdCarrier

    def next_number(self) -> int:
        self._number += 1
        return self._number

    @property
    def peer_name(self) -> str:
        return self._connection.peer_name

    @property
    def meter(self) -> Any:
        return self._connection.meter

    @property
    def is_full(self) -> bool:
        return self._connection.is_full

    @property
    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes + self._held_bytes

    def when_room(self, act: Callable[[], None]) -> None:
        self._connection.when_room(act)

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._connection.hold_beside(self._held_bytes)

    def abort(self) -> None:
        self._connection.abort()

    def violate(self, violation: ProtocolViolation) -> None:
        self._connection.violate(violation)

    # ---------------------------------------------------------------- requests

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """aiohttp's handler of a request whose head is complete."""
        self._request = request
        try:
            await self._one(request)
            if self._response.keep_alive:
                await self._room()
                self._stage = _Stage.HEAD
                self._process()
        except ConnectionError:  # the client is gone
            self._connection.close()
        except Exception as error:
            self._contain(error)
        return self._response

    def _contain(self, error: Exception) -> None:
        try:
            contain(error, self)
        except Exception as ours:
            words = f"{self._gateway.name} has failed: {type(ours).__name__}: {ours}"
            context = {"message": words, "exception": ours}
            asyncio.get_running_loop().call_exception_handler(context)
            self.abort()

    async def _one(self, request: web.BaseRequest) -> None:
        if self._connection.closed:  # its greeting came too late
            return
        if self._greeted is not None:
            greeted, self._greeted = self._greeted, None
            greeted(self._connection, _frame_of(b""))
            self._connection.note_unfinished(is_new=True)
        if self._connection.closed:
            return
        if request.version[0] != 1 or request.method == "CONNECT":
            raise ProtocolViolation(NO_HTTP)
        body = await self._read(request)
        if body is None:
            too_large = InvalidRequest(f"a request of more than {MAX_BODY_BYTES} bytes")
            await self._refuse(error_of(too_large), closes=True)
            return
        waiting_bytes = self._gateway.waiting_bytes
        if waiting_bytes + len(body) > MOST_WAITING_BYTES:
            full = Overloaded(f"{waiting_bytes} bytes of requests wait")
            await self._refuse(error_of(full), closes=True)
            return
        self._gateway.waiting_bytes += len(body)
        token = request.headers.get(TOKEN, "")
        try:
            await self._answer(request.method, request.raw_path.partition("?")[0], token, body)
        except NotAuthenticated:
            await self._refuse(self._client.refusal_of_nobody(token))
        except LedgerError as refusal:
            await self._refuse(error_of(refusal))
        except RpcError as refusal:
            await self._refuse(refusal)
        finally:
            self._gateway.waiting_bytes -= len(body)

    async def _answer(self, method: str, path: str, token: str, body: bytes) -> None:
        """Raises RpcError, LedgerError."""
        if method == "GET" and path == "/version":
            await self._tell(200, json.dumps({"etcdserver": VERSION, "etcdcluster": VERSION}))
        elif method == "GET" and path == "/health":
            await self._health()
        elif method == "POST" and path == LOGIN_PATH:
            asked = parsed(pb.AuthenticateRequest, body)
            await self._tell(200, json_of(await self._client.log_in(asked)))
        elif method == "POST" and path == WATCH_PATH:
            handlers = self._client.handlers(token)  # first: a wrong token costs no parsing
            await self._watch(handlers, parsed(pb.WatchRequest, body))
        elif method == "POST" and path == KEEP_ALIVE_PATH:
            handlers = self._client.handlers(token)
            kept = await handlers.keep_alive(parsed(pb.LeaseKeepAliveRequest, body))
            await self._tell(200, _result(kept))
        elif method == "POST" and (known := PATHS.get(path)) is not None:
            handlers = self._client.handlers(token)
            message = parsed(known.request, body)
            await self._tell(200, json_of(await known.handle(handlers, message)))
        else:
            await self._refuse(RpcError(Code.NOT_FOUND, "Not Found"))

    async def _health(self) -> None:
        """Whether a majority stores changes; if this port's own user may not put the key that this asks
        for, whether a majority confirms the leader, as in etcd."""
        health, status = {"health": "true", "reason": ""}, 200
        try:
            try:
                await self._gateway.nobody.store.health(timeout_ms=1000 * HEALTH_TIMEOUT_S)
            except NO_RIGHT:
                await self._gateway.confirm()
        except LedgerError as error:
            health, status = {"health": "false", "reason": str(error)}, 503
        await self._tell(status, json.dumps(health))

    async def _tell(self, status: int, body: str, *, closes: bool = False) -> None:
        """`closes`: close the connection, though the client may still be sending."""
        response = self._response = web.Response(status=status, body=body.encode(), headers=HEADERS)
        if closes:
            response.force_close()
            self._stage = _Stage.ANSWER
        await response.prepare(self._request)
        await response.write_eof()
        if closes:
            self._connection.close_once_read()

    async def _refuse(self, refusal: RpcError, *, closes: bool = False) -> None:
        await self._tell(_status_of(refusal), _refusal(refusal), closes=closes)

    async def _room(self) -> None:
        """Wait until the client has read most of its answers."""
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_room(partial(_set, room))
        await room

    async def _watch(self, handlers: Handlers, asked: pb.WatchRequest) -> None:
        """Stream changes until the client disconnects or the watch is cancelled."""
        if asked.WhichOneof("request_union") != "create_request":
            raise InvalidRequest("a watch begins with an object that has the watch to create")
        self._is_watching = True
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def tell(response: pb.WatchResponse) -> None:
            with suppress(ConnectionError):  # the client is gone
                await told.write(_result(response).encode() + b"\n")
            await self._room()
            if response.canceled:
                _set(ended)

        stream = WatchStream(handlers, tell, lambda more: "")
        told = self._response = web.StreamResponse(headers=HEADERS)
        told.force_close()
        await told.prepare(self._request)
        self._connection.last_words = None  # an answer has begun
        self._process()
        try:
            stream.ask(asked)
            await ended
        finally:
            stream.close()
        await told.write_eof()


def _frame_of(data: bytes) -> Frame:
    return Frame("", cast(Any, data), None)


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _result(message: Message) -> str:
    """One message of a stream, as JSON."""
    return f'{{"result": {json_of(message)}}}'


def _status_of(refusal: RpcError) -> int:
    return HTTP_STATUS.get(refusal.code, 400)


def _refusal(refusal: RpcError) -> str:
    told = {"error": refusal.words, "code": int(refusal.code), "message": refusal.words}
    return json.dumps(told)


def _last_words(problem: Exception) -> bytes | None:
    """An HTTP response made without aiohttp, which makes none without a request."""
    refusal = error_of(problem if isinstance(problem, LedgerError) else InvalidRequest(str(problem)))
    body = _refusal(refusal).encode()
    status = HTTPStatus(_status_of(refusal))
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in HEADERS.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
