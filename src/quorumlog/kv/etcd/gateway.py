"""EtcdGateway: etcd's JSON gateway on a port of a member: HTTP, and protobuf's own JSON mapping."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
from google.protobuf.message import Message

from quorumlog.client_guard import contain
from quorumlog.errors import LedgerError, NotAuthenticated, Overloaded, ProtocolViolation
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.administration import VERSION
from quorumlog.kv.etcd.errors import Code, RpcError, error_of
from quorumlog.kv.etcd.handlers import METHODS, Method
from quorumlog.kv.etcd.json_mapping import json_of, parsed
from quorumlog.kv.etcd.port import EtcdClient, EtcdEndpoint
from quorumlog.kv.etcd.watching import WatchStream
from quorumlog.kv.requests import StatusAnswer
from quorumlog.net.connection import Connection, LastWords
from quorumlog.net.frame import Frame
from quorumlog.stray_log import is_loopback

FIRST_BUFFER_BYTES, BUFFER_BYTES = 4 << 10, 64 << 10
MAX_AHEAD_BYTES = 64 << 10
"""Behind a request that is not answered yet."""


class HttpDecoder:
    """`Decoder` of a connection. The message of a frame is an event of h11."""

    missing_bytes = 1024
    unfinished_bytes = 0
    """Of the body of a request: whoever gathers it says so."""

    def __init__(self) -> None:
        self.http = h11.Connection(h11.SERVER)
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> list[Frame]:
        self.http.receive_data(bytes(self._buffer[:count]))
        if count == len(self._buffer) < BUFFER_BYTES:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        return self.events()

    def ended(self) -> list[Frame]:
        """Nothing more comes. Raises ProtocolViolation."""
        self.http.receive_data(b"")
        return self.events()

    def events(self) -> list[Frame]:
        """What has come, up to the end of a request. Raises ProtocolViolation."""
        found: list[Any] = []
        try:
            while (event := self.http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                found.append(event)
                if isinstance(event, h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError as error:
            # Without what it quotes: where a length is wrong, a body with a password is a line to it.
            raise ProtocolViolation(f"no request of HTTP: {str(error).partition(': ')[0]}") from None
        if event is h11.PAUSED and len(self.http.trailing_data[0]) > MAX_AHEAD_BYTES:
            raise ProtocolViolation(f"{MAX_AHEAD_BYTES} bytes behind a request that is not answered yet")
        return [Frame("", each, None) for each in found]

    def sent(self, *events: Any) -> list[Any]:
        """The bytes of what is answered."""
        return [data for event in events if (data := self.http.send(event))]


# ---------------------------------------------------------------- the port

MAX_BODY_BYTES = 4 << 20
"""A request of 1.5 MiB, in base64."""
MOST_WAITING_BYTES = 64 << 20
"""Of all clients, in requests that are not answered."""
HEALTH_TIMEOUT_S = 2.0
WATCH_PATH, LOGIN_PATH, KEEP_ALIVE_PATH = "/v3/watch", "/v3/auth/authenticate", "/v3/lease/keepalive"
PATHS: dict[str, Method] = {path: method for method in METHODS.values() for path in method.paths}
"""Of the calls that are answered once."""
TOKEN = b"authorization"
"""Header of who has logged in."""
JSON_HEADERS = [("content-type", "application/json")]
HTTP_STATUS = {
    Code.NOT_FOUND: 404,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}


class EtcdGateway(EtcdEndpoint):
    name = "etcd's JSON gateway"
    second = "gateway_listen"
    decoder = staticmethod(HttpDecoder)
    waiting_bytes = 0
    """Of requests that are being answered."""

    def _connect(self, connection: Connection) -> None:
        decoder = connection.decoder
        assert isinstance(decoder, HttpDecoder), decoder
        connection.session = _GatewayClient(self, connection, decoder)

    def _last_words(self) -> LastWords:
        return _last_words

    def _url_of(self, status: StatusAnswer) -> str:
        return status.etcd_gateway


class _GatewayCalls(EtcdClient):
    @property
    def is_private(self) -> bool:
        """What a process says to another one of its machine goes over no network."""
        return super().is_private or is_loopback(self._connection.peer_host)


class _GatewayClient:
    """The session of one client, and the `EtcdCarrier` of its calls: one request at a time, or a
    watch until it ends."""

    def __init__(self, gateway: EtcdGateway, connection: Connection, decoder: HttpDecoder) -> None:
        self._gateway = gateway
        self._connection = connection
        self._decoder = decoder
        self._client = _GatewayCalls(gateway, connection, self)
        self._request: h11.Request | None = None
        self._is_watching = self._says_no_more = False
        self._body = bytearray()  # it may come byte by byte
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._held_bytes = 0
        connection.at_end = self._at_end

    def _at_end(self) -> list[Frame]:
        """What it has asked is answered; a watch is not, which its end is the end of."""
        if self._is_watching:
            self._connection.close()
        return self._decoder.ended()

    def frame(self, frame: Frame) -> None:
        event: Any = frame.message
        if isinstance(event, h11.Request):
            self._request = event
            if self._decoder.http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
        elif isinstance(event, h11.Data):
            self._body += event.data
            self._decoder.unfinished_bytes = len(self._body)
            if len(self._body) > MAX_BODY_BYTES:
                too_large = InvalidRequest(f"a request of more than {MAX_BODY_BYTES} bytes")
                self._refuse(error_of(too_large), closes=True)
                self._connection.close_once_read()
        elif isinstance(event, h11.EndOfMessage) and self._request is not None:
            body, self._body = bytes(self._body), bytearray()
            self._decoder.unfinished_bytes = 0
            waiting_bytes = self._gateway.waiting_bytes
            if waiting_bytes + len(body) > MOST_WAITING_BYTES:
                full = Overloaded(f"{waiting_bytes} bytes of requests wait")
                self._refuse(error_of(full), closes=True)
                self._connection.close_once_read()
                return
            self._gateway.waiting_bytes += len(body)
            self._task = asyncio.get_running_loop().create_task(self._serve(self._request, body))
            self._task.add_done_callback(partial(self._served, len(body)))
        elif isinstance(event, h11.ConnectionClosed):
            self._says_no_more = True
            if self._task is None or self._task.done():
                self._connection.close()

    def lost(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._client.close()

    def writable(self) -> None:
        """A watch waits for room by itself."""

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

    def _served(self, body_bytes: int, task: asyncio.Task[None]) -> None:
        self._gateway.waiting_bytes -= body_bytes

    async def _serve(self, request: h11.Request, body: bytes) -> None:
        try:
            await self._one(request, body)
            if self._decoder.http.our_state is not h11.DONE or self._says_no_more:
                self._connection.close()
                return
            self._decoder.http.start_next_cycle()
            for frame in self._decoder.events():  # what has come meanwhile
                self.frame(frame)
        except Exception as error:
            contain(error, self)

    async def _one(self, request: h11.Request, body: bytes) -> None:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        token = next((value.decode("latin-1") for name, value in request.headers if name == TOKEN), "")
        try:
            await self._answer(request.method, path, token, body)
        except NotAuthenticated:
            self._refuse(self._client.refusal_of_nobody(token))
        except LedgerError as refusal:
            self._refuse(error_of(refusal))
        except RpcError as refusal:
            self._refuse(refusal)

    async def _answer(self, method: bytes, path: str, token: str, body: bytes) -> None:
        """Raises RpcError, LedgerError."""
        if method == b"GET" and path == "/version":
            self._tell(200, json.dumps({"etcdserver": VERSION, "etcdcluster": VERSION}))
        elif method == b"GET" and path == "/health":
            await self._health()
        elif method == b"POST" and path == LOGIN_PATH:
            asked = parsed(pb.AuthenticateRequest, body)
            self._tell(200, json_of(await self._client.log_in(asked)))
        elif method == b"POST" and path == WATCH_PATH:
            await self._watch(token, parsed(pb.WatchRequest, body))
        elif method == b"POST" and path == KEEP_ALIVE_PATH:
            asked_lease = parsed(pb.LeaseKeepAliveRequest, body)
            kept = await self._client.handlers(token).keep_alive(asked_lease)
            self._tell(200, _result(kept))
        elif method == b"POST" and (known := PATHS.get(path)) is not None:
            message = parsed(known.request, body)
            self._tell(200, json_of(await known.handle(self._client.handlers(token), message)))
        else:
            self._refuse(RpcError(Code.NOT_FOUND, "Not Found"))

    async def _health(self) -> None:
        """Whether a majority stores what is changed."""
        health, status = {"health": "true", "reason": ""}, 200
        try:
            await self._gateway.nobody.store.health(timeout_ms=1000 * HEALTH_TIMEOUT_S)
        except LedgerError as error:
            health, status = {"health": "false", "reason": str(error)}, 503
        self._tell(status, json.dumps(health))

    def _send(self, *events: Any) -> None:
        self._connection.write(self._decoder.sent(*events))

    def _tell(self, status: int, body: str) -> None:
        self._send(*_response(status, body))

    def _refuse(self, refusal: RpcError, *, closes: bool = False) -> None:
        self._send(*_refusal(refusal, closes=closes))

    async def _watch(self, token: str, asked: pb.WatchRequest) -> None:
        """Until the client goes, or the watch is cancelled."""
        if asked.WhichOneof("request_union") != "create_request":
            raise InvalidRequest("a watch begins with an object with what to create")
        self._is_watching = True
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def tell(response: pb.WatchResponse) -> None:
            self._send(h11.Data(data=_result(response).encode() + b"\n"))
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_room(partial(_set, room))
            await room
            if response.canceled:
                _set(ended)

        stream = WatchStream(self._client.handlers(token), tell, lambda more: "")
        headers = [*JSON_HEADERS, ("transfer-encoding", "chunked"), ("connection", "close")]
        self._send(h11.Response(status_code=200, headers=headers))
        self._connection.last_words = None  # an answer has begun
        try:
            stream.ask(asked)
            await ended
        finally:
            stream.close()
        self._send(h11.EndOfMessage())


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _result(message: Message) -> str:
    """Of a stream."""
    return f'{{"result": {json_of(message)}}}'


def _response(status: int, body: str, *, closes: bool = False) -> list[Any]:
    data = body.encode()
    headers = [*JSON_HEADERS, ("content-length", str(len(data)))]
    if closes:
        headers.append(("connection", "close"))
    return [h11.Response(status_code=status, headers=headers), h11.Data(data=data), h11.EndOfMessage()]


def _refusal(refusal: RpcError, *, closes: bool) -> list[Any]:
    told = {"error": refusal.words, "code": int(refusal.code), "message": refusal.words}
    return _response(HTTP_STATUS.get(refusal.code, 400), json.dumps(told), closes=closes)


def _last_words(problem: Exception) -> bytes | None:
    refusal = problem if isinstance(problem, LedgerError) else InvalidRequest(str(problem))
    return b"".join(HttpDecoder().sent(*_refusal(error_of(refusal), closes=True)))
