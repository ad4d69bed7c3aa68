"""A message store: RocketMQ's commit log, queues and index, in its formats and by its names.

    from quorumlog.broker import Message, connect

    with connect("127.0.0.1:10911") as broker:
        receipt = broker.send(Message("orders", b"...", keys=["4711"]))
        for message in broker.pull("orders", receipt.queue_id, 0).messages: ...

Read in this order: `message`, `record_batch`, `errors`, `config`, `store`, `wire`, `group_commands`,
`broker_port`, `client`, `offline`, `epochs`, `replication`, `failover`, `groups`, `broker_server`,
`dledger`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumlog.broker.client.async_broker_client import AsyncBrokerClient, connect_async
    from quorumlog.broker.client.blocking_broker_client import BrokerClient, connect
    from quorumlog.broker.client.broker_results import PullResult, SendReceipt
    from quorumlog.broker.client.groups.async_broker_admin import AsyncBrokerAdmin, QueueLag
    from quorumlog.broker.client.groups.async_consumer import AsyncConsumer
    from quorumlog.broker.client.groups.async_producer import AsyncProducer
    from quorumlog.broker.client.groups.blocking_groups import BrokerAdmin, Consumer, Producer
    from quorumlog.broker.client.groups.retries import SuspendQueue
    from quorumlog.broker.config import MessageStoreConfig
    from quorumlog.broker.message import Message, StoredMessage
    from quorumlog.broker.store.message_store import MessageStore

__all__ = [
    "AsyncBrokerAdmin",
    "AsyncBrokerClient",
    "AsyncConsumer",
    "AsyncProducer",
    "BrokerAdmin",
    "BrokerClient",
    "Consumer",
    "Message",
    "MessageStore",
    "MessageStoreConfig",
    "Producer",
    "PullResult",
    "QueueLag",
    "SendReceipt",
    "StoredMessage",
    "SuspendQueue",
    "connect",
    "connect_async",
]

_WHERE = {
    "AsyncBrokerAdmin": "client.groups.async_broker_admin",
    "AsyncBrokerClient": "client.async_broker_client",
    "AsyncConsumer": "client.groups.async_consumer",
    "AsyncProducer": "client.groups.async_producer",
    "BrokerAdmin": "client.groups.blocking_groups",
    "BrokerClient": "client.blocking_broker_client",
    "Consumer": "client.groups.blocking_groups",
    "Message": "message",
    "MessageStore": "store.message_store",
    "MessageStoreConfig": "config",
    "Producer": "client.groups.blocking_groups",
    "PullResult": "client.broker_results",
    "QueueLag": "client.groups.async_broker_admin",
    "SendReceipt": "client.broker_results",
    "StoredMessage": "message",
    "SuspendQueue": "client.groups.retries",
    "connect": "client.blocking_broker_client",
    "connect_async": "client.async_broker_client",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is used: a client needs no store, and a store no client."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
