"""LocalBrokers: brokers on members of one process, for tests and for a first look."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.dledger_broker import DLedgerBroker, FixedTopics
from quorumlog.broker.dledger.dledger_door import DLedgerDoor
from quorumlog.broker.dledger.extension import BrokerExtension
from quorumlog.broker.old_log import OldLog, taken_over
from quorumlog.config import StoreConfig
from quorumlog.server import LocalCluster
from quorumlog.server.free_ports import free_ports
from quorumlog.store.disk import OsDisk

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
        extensions: Callable[[str], Sequence[BrokerExtension]] = lambda member_id: (),
        starts: bool = True,
        directory: str | Path | None = None,
        storage: StoreConfig | None = None,
        staging: bool = True,
    ) -> None:
        """`topics`: how many queues each has. `extensions`: of a member, by its id. `directory`,
        `storage`, `staging`: as of `LocalCluster`."""
        ports = free_ports(members)
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.brokers: dict[str, DLedgerBroker] = {}
        self._topics = topics
        self._config = config
        self._starts = starts
        self._extensions = extensions
        self._folder = tempfile.TemporaryDirectory(prefix="quorumlog-broker-")
        self.cluster = LocalCluster(
            members, doors=self._doors, directory=directory, storage=storage, staging=staging
        )

    def _doors(self, member_id: str) -> list[DLedgerDoor]:
        disk, directory = OsDisk(), str(self.cluster.data_dir(member_id))
        old = taken_over(disk, directory)
        broker = self.brokers[member_id] = DLedgerBroker(
            disk,
            str(Path(self._folder.name) / member_id),
            self._config,
            member_id=member_id,
            brokers=self.addresses,
            topics=FixedTopics(self._topics),
            extensions=self._extensions(member_id),
            old_log=None if old is None else OldLog(disk, directory, old),
        )
        return [DLedgerDoor(broker, self.addresses[member_id])]

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
