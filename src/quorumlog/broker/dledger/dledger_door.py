"""DLedgerDoor: the broker's port on a member."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from quorumlog.broker.broker_port import BrokerPort, PutQueue
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.dledger_broker import DLedgerBroker, FixedTopics
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.offline.old_log import OldLog, taken_over
from quorumlog.config import StoreConfig, TlsOptions, parse_address
from quorumlog.net.hello import BROKER
from quorumlog.net.tls import Tls
from quorumlog.node import DoorMember
from quorumlog.server import Door, LocalCluster
from quorumlog.server.free_ports import free_ports
from quorumlog.store.disk import OsDisk

log = logging.getLogger("quorumlog.broker")


def boot_ms() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


class DLedgerDoor(Door):
    def __init__(
        self, broker: DLedgerBroker, listen: str, *, group: str | None = None, tls: Tls | None = None
    ) -> None:
        """`listen`: HOST:PORT; port 0: a free one. `tls`: None: it is plain. Raises ConfigError."""
        self._tls = tls
        self.broker = broker
        self.group = group
        self._listen = listen
        parse_address(listen)
        self._port: BrokerPort | None = None
        self.machines = broker.machines

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._port is not None, "the door is not open"
        return self._port.address

    async def open(self, member: DoorMember) -> None:
        loop = asyncio.get_running_loop()
        port = BrokerPort(self.broker, self._listen, self._tick, member.ports, self._tls, self.access)
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

    def role_changed(self) -> None:
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


# ---------------------------------------------------------------- LocalBrokers
# Brokers on members of one process, for tests and for a first look.

SMALL_INDEX = MessageStoreConfig(max_hash_slot_num=10_000, max_index_num=40_000)
"""RocketMQ's index files take 420 MB of holes each."""


class LocalBrokers:
    """`with LocalBrokers(topics={"orders": 4}) as brokers: connect(brokers.servers)`. `cluster` is the
    `LocalCluster` below, whose members may be killed and restarted; `brokers` are by member id."""

    def __init__(
        self,
        members: int = 3,
        *,
        topics: Mapping[str, int] | None = None,
        config: MessageStoreConfig = SMALL_INDEX,
        groups: Callable[[str], GroupService | None] = lambda member_id: None,
        starts: bool = True,
        directory: str | Path | None = None,
        storage: StoreConfig | None = None,
        staging: bool = True,
        tls: Callable[[str], TlsOptions | None] = lambda member_id: None,
    ) -> None:
        """`topics`: how many queues each has. `groups`: of a member, by its id; None: it has those
        topics only. `directory`, `storage`, `staging`, `tls`: as of `LocalCluster`."""
        ports = free_ports(members)
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.brokers: dict[str, DLedgerBroker] = {}
        self._topics = topics
        self._config = config
        self._starts = starts
        self._groups = groups
        self._folder = tempfile.TemporaryDirectory(prefix="quorumlog-broker-")
        self._tls = tls
        self.cluster = LocalCluster(
            members, doors=self._doors, directory=directory, storage=storage, staging=staging, tls=tls
        )

    def _doors(self, member_id: str) -> list[DLedgerDoor]:
        disk, directory = OsDisk(), str(self.cluster.data_dir(member_id))
        old = taken_over(disk, directory)
        groups = self._groups(member_id)
        broker = self.brokers[member_id] = DLedgerBroker(
            disk,
            str(Path(self._folder.name) / member_id),
            self._config,
            member_id=member_id,
            brokers=self.addresses,
            topics=FixedTopics(self._topics) if groups is None else groups.topics,
            groups=groups,
            old_log=None if old is None else OldLog(disk, directory, old),
        )
        options = self._tls(member_id)
        tls = None if options is None else Tls(options)
        return [DLedgerDoor(broker, self.addresses[member_id], tls=tls)]

    @property
    def servers(self) -> str:
        """For `quorumlog.broker.connect`."""
        return ",".join(self.addresses.values())

    def start(self) -> None:
        """See `LocalCluster.start`."""
        self.cluster.start()

    def __enter__(self) -> Self:
        """They run, unless they are to be made of classic stores first: `starts` is False then."""
        if self._starts:
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.cluster.close()
        self._folder.cleanup()
