"""DLedgerDoor: the broker's port on a member."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.serving.broker_port import BrokerPort
from quorumlog.broker.serving.put_queue import PutQueue
from quorumlog.config import parse_address
from quorumlog.consensus.ready import RoleChange
from quorumlog.net.hello import BROKER
from quorumlog.net.tls import Tls
from quorumlog.node import DoorMember, MachineFactory

log = logging.getLogger("quorumlog.broker")


def boot_ms() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


class DLedgerDoor:
    def __init__(
        self, broker: DLedgerBroker, listen: str, *, group: str | None = None, tls: Tls | None = None
    ) -> None:
        """`listen`: HOST:PORT; port 0: a free one. `tls`: None: it is plain. Raises ConfigError."""
        self._tls = tls
        self.broker = broker
        self._group = group
        self._listen = listen
        parse_address(listen)
        self._port: BrokerPort | None = None

    @property
    def group(self) -> str | None:
        return self._group

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return self.broker.machines

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._port is not None, "the door is not open"
        return self._port.address

    async def open(self, member: DoorMember) -> None:
        loop = asyncio.get_running_loop()
        port = BrokerPort(self.broker, self._listen, self._tick, member.ports, self._tls)
        self.broker.grown = port.waiting.grown
        self.broker.open(
            member, lambda message_log: PutQueue(message_log, loop), port.reads, port.waiting
        )
        await port.open()
        self._port = port
        member.ports[BROKER] = self.address
        log.info("the broker listens on %s%s", self.address, port.speaks)
        port.tick()

    def _tick(self) -> None:
        self.broker.tick(boot_ms())

    def role_changed(self, change: RoleChange) -> None:
        self.broker.role_changed()

    async def close(self) -> None:
        self._end()
        if self._port is not None:
            await self._port.close_connections()

    def abandon(self) -> None:
        self._end()
        if self._port is not None:
            self._port.abort_connections()

    def _end(self) -> None:
        if self._port is not None:
            self._port.close()
        self.broker.close()

    def ended(self) -> None:
        if self._port is not None:
            self._port.ended()
            self._port = None
        self.broker.ended()
