"""For the tests of others: stores in this process, and a pytest fixture.

from quorumlog.kv.testing import key_value_store

def test_it(key_value_store):
    key_value_store["a"] = "1"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from quorumlog.config import ConsensusConfig, TlsOptions
from quorumlog.kv.client.blocking_store import KeyValueClient
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.service import StoreOptions
from quorumlog.kv.store.engine import Engine, MemoryEngine
from quorumlog.net.tls import Tls
from quorumlog.server import LocalCluster
from quorumlog.server.free_ports import free_ports

CONSENSUS = ConsensusConfig(heartbeat_interval_ms=100, max_heartbeat_leak=10)
"""Leases are at least three election time-outs long: three seconds."""


class LocalStores:
    """`with LocalStores() as stores: kv = connect(stores.servers)`. `cluster` is the underlying
    `LocalCluster`, whose members may be killed and restarted."""

    def __init__(
        self,
        members: int = 3,
        *,
        options: StoreOptions | None = None,
        engine: Callable[[str], Callable[[], Engine]] | None = None,
        tls: Callable[[str], TlsOptions | None] = lambda member_id: None,
    ) -> None:
        """`engine`: makes that of a member, by its id. `tls`: of the log and the store, as of
        `LocalCluster`."""
        self._ports = {f"n{number}": port for number, port in enumerate(free_ports(members))}
        self._options = options
        self._engine = engine
        self._tls = tls
        self.cluster = LocalCluster(members, endpoints=self._endpoints, consensus=CONSENSUS, tls=tls)

    def _endpoints(self, member_id: str) -> list[KeyValueEndpoint]:
        engine = MemoryEngine if self._engine is None else self._engine(member_id)
        listen = f"127.0.0.1:{self._ports[member_id]}"
        return [
            KeyValueEndpoint(listen, options=self._options, engine=engine, tls=self.tls_of(member_id))
        ]

    def tls_of(self, member_id: str) -> Tls | None:
        """For a port of that member."""
        options = self._tls(member_id)
        return None if options is None else Tls(options)

    @property
    def servers(self) -> str:
        """For `quorumlog.kv.connect`."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def __enter__(self) -> Self:
        self.cluster.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.cluster.close()


try:
    import pytest
except ImportError:  # pragma: no cover - the class above needs no pytest
    pass
else:

    @pytest.fixture
    def key_value_store() -> Iterator[KeyValueClient]:
        """A client of three members in this process."""
        with LocalStores() as stores, KeyValueClient(stores.servers) as client:
            yield client
