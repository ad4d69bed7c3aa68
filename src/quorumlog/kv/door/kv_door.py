"""KeyValueDoor: the store's port on a member, and the state machine behind it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from quorumlog.client_guard import contain
from quorumlog.config import parse_address
from quorumlog.consensus.ready import RoleChange
from quorumlog.errors import ConfigError, ProtocolViolation
from quorumlog.kv.requests.frames import FROM_CLIENT_BYTES, FrameReader
from quorumlog.kv.service.service import TICK_MS, KeyValueService, StoreOptions
from quorumlog.kv.store.changes import Feed
from quorumlog.kv.store.engine import Engine
from quorumlog.kv.store.machine import MACHINE_NAME, KeyValueMachine, KeyValueMachines
from quorumlog.kv.store.memory_engine import MemoryEngine
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.stray_log import StrayLog, open_port_level

log = logging.getLogger("quorumlog.kv")

WRITE_BUFFER_BYTES = 16 << 20
CLOSED_MESSAGE = "the member is stopping"


def boot_ms() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


class _Connection(asyncio.Protocol):
    """One client; a `Session` of the service. What a turn of the loop brings is written at its end."""

    def __init__(self, door: KeyValueDoor) -> None:
        self._door = door
        self._reader = FrameReader(FROM_CLIENT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._door.connections[self] = None

    def data_received(self, data: bytes) -> None:
        try:
            for number, kind, body in self._reader.receive(data):
                self._door.service.request(self, number, kind, body)
        except Exception as error:
            contain(error, self)

    def violate(self, violation: ProtocolViolation) -> None:
        self._door.strays.closing("a client of the key-value store", violation)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        self._door.connections.pop(self, None)
        self._door.service.lost(self)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    # ---------------------------------------------------------------- Session

    def send(self, data: bytes) -> None:
        if self._transport is None:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing() and out:
            self._transport.write(b"".join(out))

    @property
    def unsent_bytes(self) -> int:
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + sum(map(len, self._out))


class KeyValueDoor:
    def __init__(
        self,
        listen: str,
        *,
        group: str | None = None,
        options: StoreOptions | None = None,
        engine: Callable[[], Engine] = MemoryEngine,
    ) -> None:
        """`listen`: HOST:PORT; port 0: a free one. Raises ConfigError."""
        self._group = group
        self._listen = parse_address(listen)
        self._options = options or StoreOptions()
        self._feed = Feed()
        self._engine = engine
        self._open_engine: Engine | None = None
        self.connections: dict[_Connection, None] = {}
        self.strays = StrayLog(log)
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._service: KeyValueService | None = None

    @property
    def group(self) -> str | None:
        return self._group

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {MACHINE_NAME: KeyValueMachines(self._machine)}

    def _machine(self) -> KeyValueMachine:
        if self._open_engine is not None:
            self._open_engine.close()  # of the machine before, which was built again
        self._open_engine = self._engine()
        engine = self._open_engine
        return KeyValueMachine(lambda: engine, self._feed)

    @property
    def service(self) -> KeyValueService:
        assert self._service is not None, "the door was not opened"
        return self._service

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._server is not None, "the door is not open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def open(self, member: DoorMember) -> None:
        """See `Door.open`. Raises ConfigError where it cannot listen."""
        loop = asyncio.get_running_loop()
        self._service = KeyValueService(member, self._feed, self._options, boot_ms)
        self._feed.wake = partial(_wake, loop, self._service.drain)
        host, port = self._listen
        try:
            self._server = await loop.create_server(lambda: _Connection(self), host, port)
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            hint = "another process uses the port: stop it, or change it" if used else "change it"
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(
                f"the key-value store cannot listen on {host}:{port}: {reason}; {hint}"
            ) from error
        log.log(
            open_port_level(host),
            "the key-value store listens on %s, without authentication: whoever reaches it may read and"
            " change everything",
            self.address,
        )
        self._tick()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        self.service.tick()

    def role_changed(self, change: RoleChange) -> None:
        """See `Door.role_changed`."""
        if self._service is not None:
            self._service.role_changed()

    async def close(self) -> None:
        """See `Door.close`."""
        self._end()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        """See `Door.abandon`."""
        self._end()
        for connection in list(self.connections):
            connection.abort()

    def ended(self) -> None:
        """See `Door.ended`."""
        if self._open_engine is not None:
            self._open_engine.close()
            self._open_engine = None

    def _end(self) -> None:
        self._feed.wake = _nobody
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()


def _wake(loop: asyncio.AbstractEventLoop, drain: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(drain)


def _nobody() -> None:
    """Nobody listens any more."""
