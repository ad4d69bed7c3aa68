"""A message store: RocketMQ's commit log, queues and index, in its formats and by its names.

    from quorumlog.broker import Message, connect

    with connect("127.0.0.1:10911") as broker:
        receipt = broker.send(Message("orders", b"...", keys=["4711"]))
        for message in broker.pull("orders", receipt.queue_id, 0).messages: ...

Read in this order: `message`, `record_batch`, `errors`, `config`, `store`, `wire`, `group_commands`,
`needs`, `broker_port`, `client`, `offline`, `epochs`, `replication`, `failover`, `groups`,
`classic_users`, `broker_server`, `dledger`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumlog.broker.errors import (
    ConsumerGroupExists,
    CoordinatorUnreachable,
    FlushDiskTimeout,
    FlushSlaveTimeout,
    GroupInUse,
    InSyncReplicasNotEnough,
    MessageDamaged,
    MessageIllegal,
    NeedsReplicatedRole,
    NoSuchMessage,
    NotMaster,
    NotReplicated,
    QueueOffsetOutOfRange,
    StaleEpoch,
    StaleGeneration,
    StoreStopped,
    SwitchRefused,
    TooManyNames,
    TopicExists,
    TopicNotPermitted,
    UnknownConsumerGroup,
    UnknownGroupMember,
    UnknownTopic,
)

if TYPE_CHECKING:
    from quorumlog.broker.client.async_broker_admin import AsyncBrokerAdmin, QueueLag
    from quorumlog.broker.client.async_broker_client import AsyncBrokerClient, connect_async
    from quorumlog.broker.client.async_consumer import AsyncConsumer, SuspendQueue
    from quorumlog.broker.client.async_producer import AsyncProducer
    from quorumlog.broker.client.blocking import BrokerAdmin, BrokerClient, Consumer, Producer, connect
    from quorumlog.broker.client.broker_calls import PullResult, SendReceipt
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
    "ConsumerGroupExists",
    "CoordinatorUnreachable",
    "FlushDiskTimeout",
    "FlushSlaveTimeout",
    "GroupInUse",
    "InSyncReplicasNotEnough",
    "Message",
    "MessageDamaged",
    "MessageIllegal",
    "MessageStore",
    "MessageStoreConfig",
    "NeedsReplicatedRole",
    "NoSuchMessage",
    "NotMaster",
    "NotReplicated",
    "Producer",
    "PullResult",
    "QueueLag",
    "QueueOffsetOutOfRange",
    "SendReceipt",
    "StaleEpoch",
    "StaleGeneration",
    "StoreStopped",
    "StoredMessage",
    "SuspendQueue",
    "SwitchRefused",
    "TooManyNames",
    "TopicExists",
    "TopicNotPermitted",
    "UnknownConsumerGroup",
    "UnknownGroupMember",
    "UnknownTopic",
    "connect",
    "connect_async",
]

_WHERE = {
    "client.async_broker_client": "AsyncBrokerClient connect_async",
    "client.async_broker_admin": "AsyncBrokerAdmin QueueLag",
    "client.async_consumer": "AsyncConsumer SuspendQueue",
    "client.async_producer": "AsyncProducer",
    "client.blocking": "BrokerAdmin BrokerClient Consumer Producer connect",
    "client.broker_calls": "PullResult SendReceipt",
    "config": "MessageStoreConfig",
    "message": "Message StoredMessage",
    "store.message_store": "MessageStore",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is used: a client needs no store, and a store no client."""
    from importlib import import_module

    for where, names in _WHERE.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
