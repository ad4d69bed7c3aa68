"""A message store: RocketMQ's commit log, queues and index, in its formats and by its names.

    from quorumlog.broker import Message, connect

    with connect("127.0.0.1:10911") as broker:
        receipt = broker.send(Message("orders", b"...", keys=["4711"]))
        for message in broker.pull("orders", receipt.queue_id, 0).messages: ...

Read in this order: `messages`, `errors`, `config`, `message_log`, `commit_log`, `flush`, `queues`,
`store_reader`, `first_look`, `message_store`, `offline_store`, `offline_ledger`, `converter`, `old_log`,
`java_config`, `old_state`, `takeover`, `epochs`, `replication`, `failover`, `wire`, `serving`,
`client`, `later_member`, `dledger`, `groups`.
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
    "AsyncBrokerAdmin": "client.groups.async_broker_admin",
    "AsyncBrokerClient": "client.async_broker_client",
    "AsyncConsumer": "client.groups.async_consumer",
    "AsyncProducer": "client.groups.async_producer",
    "BrokerAdmin": "client.groups.blocking_groups",
    "BrokerClient": "client.blocking_broker_client",
    "Consumer": "client.groups.blocking_groups",
    "ConsumerGroupExists": "errors",
    "CoordinatorUnreachable": "errors",
    "FlushDiskTimeout": "errors",
    "FlushSlaveTimeout": "errors",
    "GroupInUse": "errors",
    "InSyncReplicasNotEnough": "errors",
    "Message": "message",
    "MessageDamaged": "errors",
    "MessageIllegal": "errors",
    "MessageStore": "store.message_store",
    "MessageStoreConfig": "config",
    "NeedsReplicatedRole": "errors",
    "NoSuchMessage": "errors",
    "NotMaster": "errors",
    "NotReplicated": "errors",
    "Producer": "client.groups.blocking_groups",
    "PullResult": "client.broker_results",
    "QueueLag": "client.groups.async_broker_admin",
    "QueueOffsetOutOfRange": "errors",
    "SendReceipt": "client.broker_results",
    "StaleEpoch": "errors",
    "StaleGeneration": "errors",
    "StoreStopped": "errors",
    "StoredMessage": "message",
    "SuspendQueue": "client.groups.retries",
    "SwitchRefused": "errors",
    "TooManyNames": "errors",
    "TopicExists": "errors",
    "TopicNotPermitted": "errors",
    "UnknownConsumerGroup": "errors",
    "UnknownGroupMember": "errors",
    "UnknownTopic": "errors",
    "connect": "client.blocking_broker_client",
    "connect_async": "client.async_broker_client",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is used: a client needs no store, and a store no client."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
