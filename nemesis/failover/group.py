"""FailoverGroup: three brokers as processes, and a coordinator of three behind a proxy."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.broker_process import BrokerProcess
from harness.etcd_cluster import etcd_of_three
from harness.proxy import CUT, Network, both_ways
from harness.zookeeper import zookeeper_of_three
from quorumlog.broker import connect
from quorumlog.errors import LedgerError
from quorumlog.kv.testing import LocalStores
from quorumlog.server.free_ports import free_ports

BROKERS = 3
TOPIC, QUEUES = "t", 2
ASK_TIMEOUT_MS = 2_000
SLAVES = "slaves"
"""Whoever dials the port of a broker for slaves: they are told one address each, a proxy's."""


class FailoverGroup:
    """`with failover_group(...) as group`."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        servers: str,
        *,
        lease_ms: int,
        in_sync_replicas: int,
        options: Sequence[str] = (),
    ) -> None:
        """`options`: further ones of `quorumlog broker serve`."""
        ids = [f"b{number}" for number in range(1, BROKERS + 1)]
        stores = {f"c{number}": server for number, server in enumerate(servers.split(","))}
        ha_ports = dict(zip(ids, free_ports(BROKERS), strict=True))
        self._stores = list(stores)
        self.network = Network(
            {
                **{each: f"127.0.0.1:{port}" for each, port in ha_ports.items()},
                **stores,
                SLAVES: "127.0.0.1:1",
            }
        )
        self._cuts: dict[tuple[str, bool], int] = {}
        self._folder, self._kind = folder, kind
        self.in_sync_replicas, self.lease_ms = in_sync_replicas, lease_ms
        self._options = (
            *("--flush", "sync", "--in-sync-replicas", str(in_sync_replicas)),
            *("--lease-ms", str(lease_ms)),
            *options,
        )
        self._ha_ports = ha_ports
        self.brokers: dict[str, BrokerProcess] = {}
        self.paused: set[str] = set()

    def start(self) -> None:
        for name, port in self._ha_ports.items():
            coordinator = ",".join(self.network.address(name, store) for store in self._stores)
            self.brokers[name] = BrokerProcess(
                self._folder / name,
                *("--id", name, "--ha-port", str(port)),
                *("--ha-advertise", self.network.address(SLAVES, name)),
                *("--failover", self._kind, "--coordinator", coordinator, "--group", "nemesis"),
                *self._options,
                topics=f"{TOPIC}:{QUEUES}",
            ).start()

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def leaders(self) -> list[str]:
        """Brokers that say of themselves that they lead, by a lease that is not over."""
        found = []
        for name, broker in self.brokers.items():
            if name in self.paused or not broker.is_running:
                continue
            try:
                with connect(broker.address, timeout_ms=ASK_TIMEOUT_MS) as client:
                    if client.failover().lease_left_ms > 0:
                        found.append(name)
            except LedgerError:
                continue
        return found

    # ---------------------------------------------------------------- faults

    def kill(self, name: str) -> None:
        self.brokers[name].kill()

    def restart(self, name: str) -> None:
        self.brokers[name].start()

    def pause(self, name: str) -> None:
        os.kill(self.brokers[name].pid, signal.SIGSTOP)
        self.paused.add(name)

    def go_on(self, name: str) -> None:
        os.kill(self.brokers[name].pid, signal.SIGCONT)
        self.paused.discard(name)

    def cut(self, name: str) -> None:
        """This broker alone loses sight of the coordinator."""
        ways = both_ways([(name, store) for store in self._stores])
        self._cuts[name, False] = self.network.impose(ways, CUT)

    def mend(self, name: str) -> None:
        self.network.lift(self._cuts.pop((name, False)))

    def cut_slaves(self, name: str) -> None:
        """This broker and whoever follows it hear nothing of each other, and are not told."""
        self._cuts[name, True] = self.network.impose(both_ways([(SLAVES, name)]), CUT)

    def mend_slaves(self, name: str) -> None:
        self.network.lift(self._cuts.pop((name, True)))

    def in_sync(self, name: str) -> int:
        """How many this broker waits for, itself included; 0 where it does not say."""
        try:
            with connect(self.brokers[name].address, timeout_ms=ASK_TIMEOUT_MS) as client:
                return len(client.failover().in_sync_set)
        except LedgerError:
            return 0

    def close(self) -> None:
        for name in list(self.paused):
            self.go_on(name)
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()


@contextmanager
def failover_group(
    folder: Path,
    kind: str,
    *,
    lease_ms: int = 2_000,
    in_sync_replicas: int = 2,
    options: Sequence[str] = (),
) -> Iterator[FailoverGroup]:
    """`kind`: etcd, kv or zookeeper."""
    with ExitStack() as stack:
        if kind == "etcd":
            servers = stack.enter_context(etcd_of_three(folder / "etcd")).servers
        elif kind == "zookeeper":
            made = zookeeper_of_three(folder / "zookeeper", tick_ms=lease_ms // 10)
            servers = stack.enter_context(made).servers
        else:
            servers = stack.enter_context(LocalStores()).servers
        group = FailoverGroup(
            *(folder, kind, servers),
            lease_ms=lease_ms,
            in_sync_replicas=in_sync_replicas,
            options=options,
        )
        stack.enter_context(group.network)
        stack.callback(group.close)
        group.start()
        yield group
