"""The store and the port for clients of etcd on a simulated member: those of the product, on a loop in
virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from unittest.mock import patch

from quorumlog.kv import endpoint
from quorumlog.kv.client import asking
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd import calls, grpc_port, port, watching
from quorumlog.kv.etcd.grpc_port import EtcdPort
from quorumlog.kv.service import StoreOptions
from quorumlog.kv.store.keyspace import Feed, StoreChange
from quorumlog.net import listener, system
from quorumlog.net.connection import LoopTurn
from quorumlog.net.limits import ProcessLimits
from quorumlog.node import MachineFactory
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from sim.etcd.loops import SimLoop, SimSockets
from sim.etcd.truth import Truth

STORE_PORT, ETCD_PORT = 1000, 2000
"""Of the first member."""
FRAGMENT_BYTES = 150
"""So that two changes are too many for a response of a watch with `fragment`."""


class _NotingFeed(Feed):
    def __init__(self, cluster: SimCluster, truth: Truth) -> None:
        super().__init__()
        self._cluster = cluster
        self._truth = truth

    def tell(self, items: list[StoreChange]) -> None:
        self._truth.applied(items, self._cluster.now_ms)
        super().tell(items)


class SimEtcd(SimSockets):
    """Both ports for each process of each member."""

    def __init__(self, truth: Truth, options: StoreOptions) -> None:
        super().__init__()
        self._truth = truth
        self._options = options
        self._ports: dict[str, tuple[KeyValueEndpoint, EtcdPort]] = {}
        """Of the newest process."""

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        number = self.cluster.member_ids.index(member_id)
        store = KeyValueEndpoint(f"127.0.0.1:{STORE_PORT + number}", options=self._options)
        store._feed = _NotingFeed(self.cluster, self._truth)
        servers = ",".join(f"127.0.0.1:{STORE_PORT + n}" for n in range(len(self.cluster.member_ids)))
        etcd = EtcdPort(store, f"127.0.0.1:{ETCD_PORT + number}", servers, member_id)
        self._ports[member_id] = store, etcd
        return store.machines

    def started(self, member: SimMember) -> None:
        loop, handle = SimLoop(self, member.later, member), self.handle_of(member)
        store, etcd = self._ports[member.member_id]

        async def open_ports() -> None:
            LoopTurn.of(loop).clock = loop.time
            await store.open(handle)
            await etcd.open(handle)

        loop.create_task(open_ports())

    def stopped(self, member: SimMember) -> None:
        for each in self._ports[member.member_id]:
            each.abandon()
        for loop in self.loops:
            if loop.member is member:
                loop.stop_process()
        super().stopped(member)
        for connection in self.connections:
            if getattr(connection, "dialler", None) is member:
                connection.leave()

    @contextmanager
    def living(self) -> Iterator[None]:
        """The product sees virtual time, and draws from the seed, as long as this is open."""

        def now_s() -> float:
            return 1e6 + self.cluster.now_ms / 1000

        clock, numbers = SimpleNamespace(monotonic=now_s), count()
        limits = ProcessLimits(lambda: 1 << 20, lambda: 0)
        with ExitStack() as patches:
            for module in (system, calls, grpc_port, port):
                patches.enter_context(patch.object(module, "time", clock))
            for target, name, value in (
                (endpoint, "boot_ms", lambda: 1000 * now_s()),
                (asking, "Random", lambda: self.cluster.stream(f"forwarding {next(numbers)}")),
                (listener, "process_limits", lambda: limits),
                (watching, "FRAGMENT_BYTES", FRAGMENT_BYTES),
            ):
                patches.enter_context(patch.object(target, name, value))
            try:
                yield
            finally:
                self.close()
