"""The rights each request of the broker's port needs. One not listed here is refused.

A group's topics for retries and dead letters need the group's rights; the broker's other internal topics
are for administrators. A delayed message needs the rights of its own topic.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from quorumlog.batch import EntryBatch
from quorumlog.broker import group_commands as commands
from quorumlog.broker import wire
from quorumlog.broker.message import BODY_LENGTH_AT, BORN_HOST_V6, MAGIC, SCHEDULE_TOPIC, STORE_HOST_V6
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.log_state.users import Kind, Right
from quorumlog.net.access import CLUSTER_ADMIN, NOTHING, Need
from quorumlog.wire.client_messages import ChangeUsersRequest, UsersRequest

Needs = tuple[Need, ...]
MOST_LOOKED_AT = 64
"""Records, one by one."""
_unpack_head = struct.Struct(">4xI28xI44xi").unpack_from
"""Of a record with hosts of IPv4: its magic, its flags, and how long its body is."""
_HEAD_BYTES, _V6 = BODY_LENGTH_AT + 4, BORN_HOST_V6 | STORE_HOST_V6
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
ANY_WRITE = Need(Right.WRITE, Kind.TOPIC, is_any=True)
ALL_TOPICS = Need(Right.READ, Kind.TOPIC, b"", None)
ALL_GROUPS = Need(Right.READ, Kind.CONSUMER_GROUP, b"", None)


def _topic(right: Right, topic: str) -> Needs:
    for prefix in (commands.RETRY_PREFIX, commands.DLQ_PREFIX):
        if topic.startswith(prefix):
            return _group(Right.READ, topic.removeprefix(prefix))
    if commands.is_system_topic(topic):
        return (CLUSTER_ADMIN,)
    return (Need(right, Kind.TOPIC, _name(topic)),)


def _group(right: Right, group: str) -> Needs:
    return (Need(right, Kind.CONSUMER_GROUP, _name(group)),)


def _name(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _reads(request: Any) -> Needs:
    return _topic(Right.READ, request.topic) if request.topic else (ALL_TOPICS,)


def _uses(request: Any) -> Needs:
    """A producer reads the queues of a topic, too."""
    return tuple(
        need._replace(instead=Right.READ) if need.right is Right.WRITE else need
        for need in _topic(Right.WRITE, request.topic)
    )


def _consumes(request: Any) -> Needs:
    return _group(Right.READ, request.group)


def _cluster(request: Any) -> Needs:
    return (CLUSTER_ADMIN,)


def _nothing(request: Any) -> Needs:
    return NOTHING


def _administers_topic(command: Any) -> Needs:
    return _topic(Right.ADMIN, command.topic)


def _administers_group(command: Any) -> Needs:
    return _group(Right.ADMIN, command.group)


NEEDS_OF_BODY: dict[type, Callable[[Any], Needs]] = {
    commands.CreateTopic: _administers_topic,
    commands.UpdateTopic: _administers_topic,
    commands.DeleteTopic: _administers_topic,
    commands.CreateGroup: _administers_group,
    commands.DeleteGroup: _administers_group,
    commands.ResetOffsets: _administers_group,
    commands.FreshnessProbe: _nothing,
    commands.TopicsQuestion: _reads,
    commands.GroupsQuestion: lambda question: (
        _group(Right.READ, question.group) if question.group else (ALL_GROUPS,)
    ),
}
"""Of commands of clients, and questions. The other commands are the leader's own."""


def _of_body(decode: Callable[[bytes], Any]) -> Callable[[Any], Needs | None]:
    def needs(request: Any) -> Needs | None:
        try:
            body = decode(request.body)
        except (ValueError, RecursionError):  # the port says what is wrong with it
            return NOTHING
        found = NEEDS_OF_BODY.get(type(body))
        return None if found is None else found(body)

    return needs


STATUS = (wire.BrokerStatusRequest, wire.RoleRequest)
"""Answered while users are unknown: without these requests no client could begin."""

NEEDS: dict[type, Callable[[Any], Needs | None]] = {
    wire.SendRequest: _nothing,  # and those of its records
    wire.SessionSendRequest: _nothing,  # and those of its records
    wire.OpenSessionRequest: lambda request: (ANY_WRITE,),
    wire.PullRequest: lambda request: _topic(Right.READ, request.topic),
    wire.QueryRequest: lambda request: _topic(Right.READ, request.topic),
    wire.OffsetAtRequest: lambda request: _topic(Right.READ, request.topic),
    wire.QueuesRequest: lambda request: _uses(request) if request.topic else (ALL_TOPICS,),
    wire.TopicRouteRequest: _uses,
    wire.ViewRequest: lambda request: (ALL_TOPICS,),
    wire.BrokerStatusRequest: _nothing,
    wire.RoleRequest: _nothing,
    wire.GroupHeartbeatRequest: _consumes,
    wire.LeaveRequest: _consumes,
    wire.CommitRequest: _consumes,
    wire.GroupCommandRequest: _of_body(commands.command_of_client),
    wire.GroupQuestionRequest: _of_body(commands.decode_question),
    wire.ReplicaRequest: _cluster,
    wire.FailoverRequest: _cluster,
    wire.OldLogRequest: _cluster,
    ChangeUsersRequest: _cluster,
    UsersRequest: _cluster,
}
WITH_RECORDS = frozenset({wire.SendRequest, wire.SessionSendRequest})
ADMINISTRATIVE = frozenset(
    {
        wire.GroupCommandRequest,
        wire.ReplicaRequest,
        wire.FailoverRequest,
        ChangeUsersRequest,
    }
)
BY_OLD_USERS = (wire.ReplicaRequest, wire.FailoverRequest, wire.QueuesRequest)
"""That an administrator may while the users are not known."""


def asks_blank(request: Any) -> bool:
    """Requests that an empty broker answers without users: it must learn its master."""
    if isinstance(request, wire.ReplicaRequest):
        return request.verb in ("", "promise", "slave")
    return isinstance(request, wire.FailoverRequest) and request.only_looks


def key_of(request: Any) -> object:
    """Requests with the same key need the same; None: of few it is known so cheaply."""
    return request.topic if type(request) is wire.PullRequest else None


def needs_of(request: Any) -> Needs | None:
    """None: it is refused."""
    needs = NEEDS.get(type(request))
    return None if needs is None else needs(request)


def plain_topics(batch: EntryBatch) -> set[bytes] | None:
    """Of records as nearly all are, which are few; None: they have to be looked at closer. That they are
    records is seen later."""
    if batch.count > MOST_LOOKED_AT:
        return None
    topics, buffer, start = set(), batch.buffer, 0
    for size in (batch.total_bytes,) if batch.count == 1 else batch.sizes.tolist():
        stop = start + size
        if size <= _HEAD_BYTES:
            return None
        magic, sys_flag, body_bytes = _unpack_head(buffer, start)
        topic_at = start + _HEAD_BYTES + body_bytes
        if magic != MAGIC or sys_flag & _V6 or not start < topic_at < stop:
            return None
        topic_at += 1
        topic = bytes(buffer[topic_at : topic_at + buffer[topic_at - 1]])
        if not topic or topic == _SCHEDULE_TOPIC:
            return None
        topics.add(topic)
        start = stop
    return topics


def needs_to_send(topic: bytes) -> Needs:
    return _topic(Right.WRITE, topic.decode(errors="replace"))


def needs_of_records(records: RecordBatch) -> Needs:
    if not records.columns.good.all():
        return NOTHING  # the whole of it is refused, as no records
    topics = dict.fromkeys(key.topic for key, _ in records.queues if key.topic != SCHEDULE_TOPIC)
    topics |= dict.fromkeys(_real_topics(records))
    needs = (_topic(Right.WRITE, topic) if topic else (CLUSTER_ADMIN,) for topic in topics)
    return tuple(dict.fromkeys(need for each in needs for need in each))


def _real_topics(records: RecordBatch) -> Iterator[str]:
    """Of delayed ones, as they are released; empty of one without."""
    delayed = [rows.tolist() for key, rows in records.queues if key.topic == SCHEDULE_TOPIC]
    if not delayed:
        return
    properties = records.properties
    found = properties.find(commands.REAL_TOPIC)  # no `texts`: those are all as wide as the widest
    values = {
        row: bytes(properties.data[start : start + size]).rstrip(b"\0")
        for row, start, size in zip(*(each.tolist() for each in found), strict=True)
    }
    for rows in delayed:
        yield from (values.get(row, b"").decode(errors="replace") for row in rows)


def words_of(request: Any) -> str:
    """Of an administrative act, for the audit."""
    if isinstance(request, ChangeUsersRequest):
        return request.order.words
    if not isinstance(request, wire.GroupCommandRequest):
        return f"{type(request).__name__.removesuffix('Request')} {request.verb}".rstrip()
    try:
        command = commands.command_of_client(request.body)
    except (ValueError, RecursionError):
        return "a command that is none"
    name = getattr(command, "topic", "") or getattr(command, "group", "")
    return f"{type(command).__name__} {name}"
