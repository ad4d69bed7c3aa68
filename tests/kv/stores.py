"""Three members with a store each, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quorumlog.config import ConsensusConfig
from quorumlog.kv import KeyValueDoor, StoreOptions
from quorumlog.server import LocalCluster
from quorumlog.server.free_ports import free_ports


class StoreCluster:
    def __init__(self, cluster: LocalCluster, servers: str) -> None:
        self.cluster = cluster
        self.servers = servers


@contextmanager
def store_cluster(
    options: StoreOptions | None = None,
    engine: Callable[[str], Callable[[], object]] | None = None,
    members: int = 3,
) -> Iterator[StoreCluster]:
    ports = {f"n{number}": port for number, port in enumerate(free_ports(members))}

    def doors(member_id: str) -> list[KeyValueDoor]:
        listen = f"127.0.0.1:{ports[member_id]}"
        if engine is None:
            return [KeyValueDoor(listen, options=options)]
        return [KeyValueDoor(listen, options=options, engine=engine(member_id))]  # type: ignore[arg-type]

    # Leases are at least two election time-outs long.
    consensus = ConsensusConfig(heartbeat_interval_ms=100, max_heartbeat_leak=10)
    with LocalCluster(members, doors=doors, consensus=consensus) as cluster:
        yield StoreCluster(cluster, ",".join(f"127.0.0.1:{port}" for port in ports.values()))
