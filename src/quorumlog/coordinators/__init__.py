"""Coordinators for the failover of brokers: the interface of `quorumlog.broker.failover` on an existing
store.

Read in this order: `kv_coordinator`, `etcd_coordinator`, `zookeeper_coordinator`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.broker.failover import Coordinator
    from quorumlog.net.credentials import ClientUser
    from quorumlog.net.tls import ClientTls


class CoordinatorKind(Enum):
    ETCD = "etcd"
    KV = "kv"
    ZOOKEEPER = "zookeeper"


def coordinator_of(
    kind: CoordinatorKind,
    servers: str,
    group: str,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> Coordinator:
    """`servers`: HOST:PORT,... of the stores' client ports. `group`: common to the brokers that fail
    over for each other. `tls`, `user`: for a key-value store. Does not connect yet. Raises
    ConfigError."""
    from quorumlog.config import parse_address
    from quorumlog.errors import ConfigError, the_extra

    if tls is not None and kind is not CoordinatorKind.KV:
        raise ConfigError("--coordinator-ca is for --failover kv: etcd at https:// needs no option")
    if user is not None and kind is not CoordinatorKind.KV:
        raise ConfigError(
            "--coordinator-user is for --failover kv: etcd and ZooKeeper are used without a user"
        )
    if kind is not CoordinatorKind.ETCD:
        for server in servers.split(","):
            parse_address(server.strip())
    if kind is CoordinatorKind.KV:
        from quorumlog.coordinators.kv_coordinator import KeyValueCoordinator

        return KeyValueCoordinator(servers, group, tls, user)
    try:
        if kind is CoordinatorKind.ETCD:
            from quorumlog.coordinators.etcd_coordinator import EtcdCoordinator

            return EtcdCoordinator(servers, group)
        from quorumlog.coordinators.zookeeper_coordinator import ZooKeeperCoordinator

        return ZooKeeperCoordinator(servers, group)
    except ImportError as error:
        raise ConfigError(
            f"{kind.value} as the coordinator needs its client ({error}), {the_extra(kind.value)}"
        ) from None
