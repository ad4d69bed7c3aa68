"""Ports for clients of etcd on a member with a store: etcd's gRPC API and its JSON gateway.

Read in this order: DESIGN.md, `messages_pb2` (requests and responses, generated from messages.proto),
`errors`, `conversions` (to the store's own requests), `identity`, `calls` (to this member's store, or
another's), `administration`, `handlers` (the calls), `watching`, `logins` (users), `port` (shared by
both ports), `grpc_port`, `json_mapping`, `gateway`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.errors import ConfigError, the_extra

if TYPE_CHECKING:
    from quorumlog.kv.endpoint import KeyValueEndpoint
    from quorumlog.kv.etcd.port import EtcdEndpoint
    from quorumlog.net.credentials import ClientUser
    from quorumlog.net.tls import Tls

EXTRA = "etcd-gateway"


def etcd_port(
    store: KeyValueEndpoint,
    listen: str,
    servers: str,
    member_id: str,
    tls: Tls | None = None,
    user: ClientUser | None = None,
) -> EtcdEndpoint:
    """Arguments as of `EtcdEndpoint`. Raises ConfigError."""
    try:
        from quorumlog.kv.etcd.grpc_port import EtcdPort
    except ImportError as error:
        raise ConfigError(
            f"etcd's gRPC port needs h2 and protobuf ({error}), {the_extra(EXTRA)}"
        ) from None
    return EtcdPort(store, listen, servers, member_id, tls, user)


def etcd_gateway(
    store: KeyValueEndpoint,
    listen: str,
    servers: str,
    member_id: str,
    tls: Tls | None = None,
    user: ClientUser | None = None,
) -> EtcdEndpoint:
    """As `etcd_port`, of the JSON gateway."""
    try:
        from quorumlog.kv.etcd.gateway import EtcdGateway
    except ImportError as error:
        raise ConfigError(
            f"the gateway needs aiohttp and protobuf ({error}), {the_extra(EXTRA)}"
        ) from None
    return EtcdGateway(store, listen, servers, member_id, tls, user)
