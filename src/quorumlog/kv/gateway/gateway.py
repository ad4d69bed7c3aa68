"""EtcdGateway: the port of a member's gateway. A door of the server that only asks the stores."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import h11

from quorumlog.client_guard import contain
from quorumlog.config import parse_address
from quorumlog.consensus.ready import RoleChange
from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.gateway.from_json import Given
from quorumlog.kv.gateway.members import GatewayMembers
from quorumlog.kv.gateway.routes import Routes
from quorumlog.kv.gateway.to_json import Told, error_of
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.stray_log import StrayLog, open_port_level

log = logging.getLogger("quorumlog.kv")

MAX_BODY_BYTES = 4 << 20
"""A request of 1.5 MiB, in base64."""
READ_BYTES = 1 << 16
TIMEOUT_S = 5.0
"""As long as etcd itself waits for a majority."""
WATCH_PATH = "/v3/watch"
JSON_HEADERS = [("content-type", "application/json")]


class EtcdGateway:
    def __init__(self, listen: str, servers: str, member_id: str, group: str | None = None) -> None:
        """`servers`: the stores of all members, HOST:PORT,... Raises ConfigError."""
        self._listen = parse_address(listen)
        self._servers = servers
        self._addresses = [parse_address(each.strip()) for each in servers.split(",") if each.strip()]
        if not self._addresses:
            raise ConfigError("a gateway needs the stores of all members as its servers: HOST:PORT,...")
        self._member_id = member_id
        self._group = group
        self._client: AsyncKeyValueClient | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def group(self) -> str | None:
        return self._group

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {}

    async def open(self, member: DoorMember) -> None:
        """Raises ConfigError."""
        self._client = AsyncKeyValueClient(self._servers, timeout_s=TIMEOUT_S)
        strays = StrayLog(log)
        routes = Routes(self._client, self._member_id, GatewayMembers(self._addresses))

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(
                _Connection(routes, reader, writer, strays).serve()
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        host, port = self._listen
        try:
            self._server = await asyncio.start_server(begin, host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(
                f"the gateway for clients of etcd cannot listen on {host}:{port}: {reason}; change it"
            ) from error
        level = open_port_level(host)
        log.log(level, "etcd's JSON gateway is spoken on %s:%s, without authentication", host, port)

    def role_changed(self, change: RoleChange) -> None:
        """Its client finds the leader by itself."""

    async def close(self) -> None:
        self.abandon()
        if self._client is not None:
            await self._client.close()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def ended(self) -> None:
        """It holds nothing."""


class _Connection:
    """One client: a request after the other, or a watch until it ends."""

    def __init__(
        self,
        routes: Routes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        strays: StrayLog,
    ) -> None:
        self._routes = routes
        self._strays = strays
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        try:
            while await self._one():
                self._http.start_next_cycle()
        except (h11.RemoteProtocolError, ConnectionError):
            pass  # no client of HTTP, or gone
        except Exception as error:
            contain(error, self)
        finally:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    def violate(self, violation: ProtocolViolation) -> None:
        """See `client_guard`; the connection closes behind it."""
        self._strays.closing("a client of etcd's gateway", violation)

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    def _send(self, event: Any) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)

    async def _one(self) -> bool:
        """False: the connection has ended."""
        request = await self._event()
        if not isinstance(request, h11.Request):
            return False
        body = bytearray()  # it may come byte by byte
        while isinstance(part := await self._event(), h11.Data):
            body += part.data
            if len(body) > MAX_BODY_BYTES:
                too_large = InvalidRequest(f"a request of more than {MAX_BODY_BYTES} bytes")
                await self._answer(*error_of(too_large), closes=True)
                return False
        path = request.target.decode("ascii", "replace").partition("?")[0]
        try:
            given = _object_of(body) if request.method == b"POST" else {}
            if request.method == b"POST" and path == WATCH_PATH:
                async with aclosing(self._routes.watch(given)) as told:
                    await self._stream(told)
                return False
            status, answer = await self._routes.answer(request.method.decode(), path, given)
        except LedgerError as error:
            status, answer = error_of(error)
        except RecursionError:
            status, answer = error_of(InvalidRequest("the request is nested too deeply"))
        await self._answer(status, answer)
        return self._http.our_state is h11.DONE

    async def _answer(self, status: int, told: Told, *, closes: bool = False) -> None:
        data = json.dumps(told).encode()
        headers = [*JSON_HEADERS, ("content-length", str(len(data)))]
        if closes:
            headers.append(("connection", "close"))
        self._send(h11.Response(status_code=status, headers=headers))
        self._send(h11.Data(data=data))
        self._send(h11.EndOfMessage())
        await self._writer.drain()

    async def _stream(self, told: AsyncIterator[Told]) -> None:
        """Until the client goes or there is no more. The first is waited for: refusals have a status."""
        first = await anext(told)
        headers = [*JSON_HEADERS, ("transfer-encoding", "chunked"), ("connection", "close")]
        self._send(h11.Response(status_code=200, headers=headers))

        async def tell() -> None:
            await self._tell(first)
            async for each in told:
                await self._tell(each)
            self._send(h11.EndOfMessage())
            await self._writer.drain()

        telling = asyncio.create_task(tell())
        leaving = asyncio.create_task(self._reader.read(1))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            for task in (telling, leaving):
                task.cancel()
            await asyncio.gather(telling, leaving, return_exceptions=True)

    async def _tell(self, told: Told) -> None:
        self._send(h11.Data(data=json.dumps(told).encode() + b"\n"))
        await self._writer.drain()


def _object_of(body: bytes | bytearray) -> Given:
    """Raises InvalidRequest."""
    try:
        given = json.loads(body) if body.strip() else {}
    except ValueError as error:
        raise InvalidRequest(f"the request is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidRequest("the request is no object of JSON")
    return given
