"""EtcdGateway: the port of a member's gateway. An endpoint of the server that only asks the stores."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import h11

from quorumlog.client_guard import contain
from quorumlog.config import parse_address
from quorumlog.errors import LedgerError, NotAuthenticated, Overloaded, ProtocolViolation
from quorumlog.kv.client.asking import addresses_of
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.gateway.etcd_json import (
    NO_USER,
    NO_USERS,
    WRONG_PASSWORD,
    WRONG_TOKEN,
    JsonRequest,
    JsonResponse,
    error_of,
    refusal,
)
from quorumlog.kv.gateway.logins import Logins
from quorumlog.kv.gateway.routes import GatewayMembers, Routes
from quorumlog.net.access import WRONG_PAUSE_S
from quorumlog.net.connection import Connection
from quorumlog.net.credentials import ClientUser
from quorumlog.net.frame import Frame
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls
from quorumlog.node import NodeHandle
from quorumlog.server import Endpoint

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


# ----------------------------------------------------------------
# EtcdGateway: the port of a member's gateway. An endpoint of the server that only asks the stores.


log = logging.getLogger("quorumlog.kv")

MAX_BODY_BYTES = 4 << 20
"""A request of 1.5 MiB, in base64."""
MOST_WAITING_BYTES = 64 << 20
"""Of all clients, in requests that are not answered."""
TIMEOUT_S = 5.0
"""As long as etcd itself waits for a majority."""
WATCH_PATH, LOGIN_PATH = "/v3/watch", "/v3/auth/authenticate"
TOKEN = b"authorization"
"""Header of who has logged in."""
JSON_HEADERS = [("content-type", "application/json")]


class EtcdGateway(Endpoint):
    def __init__(
        self,
        listen: str,
        servers: str,
        member_id: str,
        group: str | None = None,
        tls: Tls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`servers`: the stores of all members, HOST:PORT,... `tls`: None: the port is plain. `user`:
        whom it asks the stores as for clients that have not logged in. Raises ConfigError."""
        self._listen = parse_address(listen)
        self._servers = servers
        addresses_of(servers)
        self._member_id = member_id
        self._tls = tls
        self._user = user
        self.group = group
        self.logins = Logins(self._routes_as)
        self.routes: Routes | None = None
        """Of clients that have not logged in."""
        self._listener = Listener(
            "the gateway for clients of etcd",
            self._connect,
            decoder=HttpDecoder,
            last_words=_last_words,
            option="the gateway's address",
            tls=tls,
            second="gateway_listen",
        )

    async def open(self, member: NodeHandle) -> None:
        """Raises ConfigError."""
        self.routes = self._routes_as(self._user)
        self._listener.access = self.access
        host, port = self._listen
        await self._listener.open(host, port)
        log.info(
            "etcd's JSON gateway listens on %s:%s%s",
            host,
            port,
            self._listener.speaks,
            extra={"event": "listens"},
        )

    def _routes_as(self, user: ClientUser | None) -> Routes:
        options = None if self._tls is None else self._tls.options
        goes_over = options is not None and options.store_listen and options.peers != "required"
        tls = None if self._tls is None or goes_over else self._tls.as_client()
        timeout_ms = 1000 * TIMEOUT_S
        client = AsyncKeyValueClient(self._servers, timeout_ms=timeout_ms, tls=tls, user=user)
        return Routes(client, self._member_id, GatewayMembers(client.asking))

    def _connect(self, connection: Connection) -> None:
        decoder = connection.decoder
        assert isinstance(decoder, HttpDecoder), decoder
        assert self.routes is not None
        connection.session = _GatewayClient(self, self.routes, connection, decoder)

    async def close(self) -> None:
        self.abandon()
        await self.logins.close()
        if self.routes is not None:
            await self.routes.client.close()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        self._listener.close()
        self._listener.abort_connections()


class _GatewayClient:
    """The session of one client: a request after the other, or a watch until it ends."""

    def __init__(
        self, gateway: EtcdGateway, routes: Routes, connection: Connection, decoder: HttpDecoder
    ) -> None:
        """`routes`: of who has not logged in."""
        self._gateway = gateway
        self._routes = routes
        self._connection = connection
        self._decoder = decoder
        self._request: h11.Request | None = None
        self._is_watching = self._says_no_more = False
        self._body = bytearray()  # it may come byte by byte
        self._task: asyncio.Task[None] | None = None
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
                self._answer(*error_of(too_large), closes=True)
                self._connection.close_once_read()
        elif isinstance(event, h11.EndOfMessage) and self._request is not None:
            body, self._body = bytes(self._body), bytearray()
            self._decoder.unfinished_bytes = 0
            waiting_bytes = self._routes.waiting_bytes
            if waiting_bytes + len(body) > MOST_WAITING_BYTES:
                self._answer(
                    *error_of(Overloaded(f"{waiting_bytes} bytes of requests wait")), closes=True
                )
                self._connection.close_once_read()
                return
            self._routes.waiting_bytes += len(body)
            self._task = asyncio.get_running_loop().create_task(self._serve(self._request, body))
            self._task.add_done_callback(partial(self._served, len(body)))
        elif isinstance(event, h11.ConnectionClosed):
            self._says_no_more = True
            if self._task is None or self._task.done():
                self._connection.close()

    def lost(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def writable(self) -> None:
        """A watch waits for room by itself."""

    def violate(self, violation: ProtocolViolation) -> None:
        self._connection.violate(violation)

    def _served(self, body_bytes: int, task: asyncio.Task[None]) -> None:
        self._routes.waiting_bytes -= body_bytes

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
        says = next((value.decode("latin-1") for name, value in request.headers if name == TOKEN), "")
        unknown = WRONG_TOKEN if says else NO_USER
        try:
            given = _object_of(body) if request.method == b"POST" else {}
            if request.method == b"POST" and path == LOGIN_PATH:
                unknown = WRONG_PASSWORD
                self._answer(*await self._log_in(given))
                return
            routes = self._gateway.logins.routes_of(says) if says else self._routes
            if request.method == b"POST" and path == WATCH_PATH:
                self._is_watching = True
                async with aclosing(routes.watch(given, self._connection.hold_beside)) as responses:
                    await self._stream(responses)
                return
            status, answer = await routes.answer(request.method.decode(), path, given)
        except NotAuthenticated:
            status, answer = refusal(*unknown)
        except LedgerError as error:
            status, answer = error_of(error)
        except RecursionError:
            status, answer = error_of(InvalidRequest("the request is nested too deeply"))
        self._answer(status, answer)

    async def _log_in(self, given: JsonRequest) -> tuple[int, JsonResponse]:
        access = self._gateway.access
        if not access.is_on:
            return refusal(*NO_USERS)
        try:
            token = await self._gateway.logins.begin(given, self._connection.peer_host)
        except NotAuthenticated:
            access.tell_of_wrong(str(given.get("name")), self._connection.peer_name)
            await asyncio.sleep(WRONG_PAUSE_S)
            raise
        return 200, {"header": self._routes.header(0), "token": token}

    def _send(self, *events: Any) -> None:
        self._connection.write(self._decoder.sent(*events))

    def _answer(self, status: int, responses: JsonResponse, *, closes: bool = False) -> None:
        self._send(*_answer(status, responses, closes=closes))

    async def _stream(self, responses: AsyncIterator[JsonResponse]) -> None:
        """Until the client goes or there is no more. The first is waited for: refusals have a status."""
        first = await anext(responses)
        headers = [*JSON_HEADERS, ("transfer-encoding", "chunked"), ("connection", "close")]
        self._send(h11.Response(status_code=200, headers=headers))
        self._connection.last_words = None  # an answer has begun
        await self._tell(first)
        async for each in responses:
            await self._tell(each)
        self._send(h11.EndOfMessage())

    async def _tell(self, responses: JsonResponse) -> None:
        self._send(h11.Data(data=json.dumps(responses).encode() + b"\n"))
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection.when_room(partial(_set, room))
        await room


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _answer(status: int, responses: JsonResponse, *, closes: bool = False) -> list[Any]:
    data = json.dumps(responses).encode()
    headers = [*JSON_HEADERS, ("content-length", str(len(data)))]
    if closes:
        headers.append(("connection", "close"))
    return [h11.Response(status_code=status, headers=headers), h11.Data(data=data), h11.EndOfMessage()]


def _last_words(problem: Exception) -> bytes | None:
    refusal = problem if isinstance(problem, LedgerError) else InvalidRequest(str(problem))
    return b"".join(HttpDecoder().sent(*_answer(*error_of(refusal), closes=True)))


def _object_of(body: bytes | bytearray) -> JsonRequest:
    """Raises InvalidRequest."""
    try:
        given = json.loads(body) if body.strip() else {}
    except ValueError as error:
        raise InvalidRequest(f"the request is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidRequest("the request is no object of JSON")
    return given
