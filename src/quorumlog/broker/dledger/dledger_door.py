"""DLedgerDoor: the broker's port on a member."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Mapping

from quorumlog.broker.dledger.dledger_broker import TICK_MS, DLedgerBroker
from quorumlog.broker.serving.broker_session import BrokerSession
from quorumlog.broker.serving.put_queue import PutQueue
from quorumlog.broker.serving.waiting_pulls import WaitingPulls
from quorumlog.broker.wire.broker_framing import broker_decoder
from quorumlog.config import parse_address
from quorumlog.consensus.ready import RoleChange
from quorumlog.errors import ConfigError
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.server.disk_thread import DiskThread
from quorumlog.stray_log import open_port_level

log = logging.getLogger("quorumlog.broker")


def boot_ms() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


class DLedgerDoor:
    def __init__(self, broker: DLedgerBroker, listen: str, *, group: str | None = None) -> None:
        """`listen`: HOST:PORT; port 0: a free one. Raises ConfigError."""
        self.broker = broker
        self._group = group
        self._listen = parse_address(listen)
        self._connections: dict[Connection, None] = {}
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reads: DiskThread | None = None

    @property
    def group(self) -> str | None:
        return self._group

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return self.broker.machines

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._listener is not None, "the door is not open"
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def open(self, member: DoorMember) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._loop_turn = LoopTurn(loop)
        self._reads = DiskThread("broker-reads", loop)
        waiting = WaitingPulls(loop)
        self.broker.grown = waiting.grown
        self.broker.open(member, lambda message_log: PutQueue(message_log, loop), self._reads, waiting)
        host, port = self._listen
        try:
            self._listener = await loop.create_server(self._connection, host, port, backlog=1024)
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            hint = "another process uses the port: stop it, or change it" if used else "change it"
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(f"the broker cannot listen on {host}:{port}: {reason}; {hint}") from error
        log.log(
            open_port_level(host),
            "the broker listens on %s, without authentication: whoever reaches it may read and write",
            self.address,
        )
        self._tick()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)
        self.broker.tick(boot_ms())

    def _connection(self) -> Connection:
        connection = Connection(self._loop_turn, self._first_frame, self._lost, decoder=broker_decoder())
        self._connections[connection] = None
        return connection

    def _first_frame(self, connection: Connection, frame: Frame) -> None:
        connection.session = BrokerSession(self.broker, connection)
        connection.session.frame(frame)

    def _lost(self, connection: Connection, closed_by_peer: bool) -> None:
        self._connections.pop(connection, None)

    def role_changed(self, change: RoleChange) -> None:
        self.broker.role_changed()

    async def close(self) -> None:
        self._end()
        await asyncio.sleep(0)  # what was answered last leaves
        for connection in list(self._connections):
            connection.close()

    def abandon(self) -> None:
        self._end()
        for connection in list(self._connections):
            connection.close()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        self.broker.close()

    def ended(self) -> None:
        if self._reads is not None:
            self._reads.close()
            self._reads = None
        self.broker.ended()
