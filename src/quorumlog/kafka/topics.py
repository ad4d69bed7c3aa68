"""Metadata, DescribeCluster, DescribeConfigs; and creating, growing and deleting topics."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from quorumlog.client_guard import answering
from quorumlog.kafka.commands import Row, carry_out, change, first_code
from quorumlog.kafka.machine import (
    MOST_PARTITIONS,
    TOPIC_NAME,
    Command,
    CreateKafkaTopic,
    DeleteKafkaTopic,
    GrowKafkaTopic,
    KafkaTopic,
)
from quorumlog.kafka.service import NO_NODE, KafkaCall, KafkaService
from quorumlog.log_state.users import Kind, Right

AUTO_CREATE_MS = 10_000


# ---------------------------------------------------------------- Metadata


def metadata(service: KafkaService, call: KafkaCall) -> None:
    """Every member answers from its applied state; the leader creates missing topics."""
    fields, version = call.fields, call.request.version
    asked, machine = fields.topics, service.machine
    if asked is None and not call.knows_users:
        # A list without the topics that its client may not see would be one of no topics.
        call.answer(None, ErrorCode.leader_not_available)
        return
    if asked is not None:  # a topic that is named twice is told of once: its partitions may be many
        # The name counts where there is one, whatever the id.
        asked = list(
            {each.topic_id if each.name is None else each.name: each for each in asked}.values()
        )
    if asked is None or (version == 0 and not asked):
        found = [topic for topic in list(machine.topics.values()) if not _unseen(call, topic.name)]
        _answer_metadata(service, call, [_topic_row(service, topic) for topic in found])
        return
    missing = {each.name for each in asked if each.name is not None and each.name not in machine.topics}
    may_create = service.options.auto_create_topics and getattr(
        fields, "allow_auto_topic_creation", True
    )
    created = [
        name
        for name in sorted(missing)
        if may_create and TOPIC_NAME.match(name) and not call.denied(Right.WRITE, Kind.TOPIC, name)
    ]

    def answer(codes: list[int]) -> None:
        rows = [_asked_row(service, call, each) for each in asked]
        for row in rows:
            if row["name"] in created and row["error_code"] == ErrorCode.unknown_topic_or_partition:
                row["error_code"] = (
                    ErrorCode.leader_not_available
                )  # it is made when it is asked for again
        _answer_metadata(service, call, rows)

    def led(whole: bytes | None) -> None:
        if whole is None:
            answer([])
        else:
            call.answer(whole)

    leader = service.nodes.get(service.leader)
    if created and service.leads:
        commands = [
            CreateKafkaTopic(os.urandom(16), name, service.options.partitions) for name in created
        ]
        carry_out(service, call, commands, AUTO_CREATE_MS, answer)
    elif created and leader is not None and _may_forward(service, call, missing, created):
        service.leader_calls.ask(*leader, call.request, answering(led, call.client))
    else:
        answer([])


def _may_forward(service: KafkaService, call: KafkaCall, missing: set[str], created: list[str]) -> bool:
    """Whether the whole request may be forwarded. The leader skips the checks of rights for a member,
    which it recognizes by its certificate. So this member needs one, and its client must have the
    rights to create every missing topic and to see every requested one."""
    caller = call.client.caller
    if not caller.is_checked:
        return True
    topics = call.fields.topics
    return (
        service.leader_calls.shows_member
        and len(created) == len(missing)
        and not any(each.name is None or _unseen(call, each.name) for each in topics)
    )


def _unseen(call: KafkaCall, name: str) -> ErrorCode:
    """An error code unless the client may read or write the topic."""
    return call.denied(Right.WRITE, Kind.TOPIC, name, instead=Right.READ)


def _asked_row(service: KafkaService, call: KafkaCall, asked: Any) -> Row:
    machine = service.machine
    if asked.name is None:
        topic = machine.by_id.get(asked.topic_id.bytes)
        code = ErrorCode.unknown_topic_id
    else:
        topic = machine.topics.get(asked.name)
        is_name = TOPIC_NAME.match(asked.name)
        code = ErrorCode.unknown_topic_or_partition if is_name else ErrorCode.invalid_topic_exception
    name = asked.name if topic is None else topic.name
    denied = _unseen(call, name) if name is not None else ErrorCode.none
    if topic is None or denied:
        topic_id = getattr(asked, "topic_id", None)
        return {"error_code": denied or code, "name": name, "topic_id": topic_id}
    return _topic_row(service, topic)


def _topic_row(service: KafkaService, topic: KafkaTopic) -> Row:
    nodes = list(service.nodes)
    partition = {
        "error_code": ErrorCode.leader_not_available if service.leader == NO_NODE else ErrorCode.none,
        "leader_id": service.leader,
        "leader_epoch": service.epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
    }
    rows = [{**partition, "partition_index": number} for number in range(len(topic.partitions))]
    return {"error_code": 0, "name": topic.name, "topic_id": topic.uuid, "partitions": rows}


def _node_rows(service: KafkaService, name: str = "node_id") -> list[Row]:
    return [
        {name: node_id, "host": host, "port": port} for node_id, (host, port) in service.nodes.items()
    ]


def _answer_metadata(service: KafkaService, call: KafkaCall, rows: list[Row]) -> None:
    call.answer(
        {
            "brokers": _node_rows(service),
            "cluster_id": service.cluster_id,
            "controller_id": service.leader,
            "topics": rows,
        },
        first_code(rows),
    )


def describe_cluster(service: KafkaService, call: KafkaCall) -> None:
    call.answer(
        {
            "cluster_id": service.cluster_id,
            "controller_id": service.leader,
            "brokers": _node_rows(service, "broker_id"),
        }
    )


# ---------------------------------------------------------------- Topics that change


def _refused(row: Row, code: ErrorCode, message: str = "") -> tuple[Row, None]:
    return {**row, "error_code": code, "error_message": message or None}, None


SETTINGS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Settings of every topic; other values are refused. Deletion follows the retention of the log."""


def create_topics(service: KafkaService, call: KafkaCall) -> None:
    names = Counter(each.name for each in call.fields.topics)
    wanted = [
        _creation(service, call, each)
        if names[each.name] == 1
        else _refused({"name": each.name}, ErrorCode.invalid_request, f"{each.name} is named twice")
        for each in {each.name: each for each in call.fields.topics}.values()
    ]
    change(service, call, wanted, "topics")


def _creation(service: KafkaService, call: KafkaCall, asked: Any) -> tuple[Row, Command | None]:
    count = asked.num_partitions
    if asked.assignments:
        count = len(asked.assignments)
    elif count == -1:
        count = service.options.partitions
    replicas = len(service.nodes)
    row: Row = {
        "name": asked.name,
        "num_partitions": count,
        "replication_factor": replicas,
        "configs": [
            {"name": name, "value": value, "read_only": True, "config_source": _DEFAULT}
            for name, value in SETTINGS.items()
        ],
    }
    if denied := call.denied(Right.ADMIN, Kind.TOPIC, asked.name):
        return _refused(row, denied)
    if not service.leads:
        return _refused(row, ErrorCode.not_controller)
    if not TOPIC_NAME.match(asked.name):
        name = "a topic's name has 1 to 249 letters, digits, dots, dashes and underscores"
        return _refused(row, ErrorCode.invalid_topic_exception, name)
    if asked.name in service.machine.topics:
        return _refused(row, ErrorCode.topic_already_exists, f"topic {asked.name} already exists")
    if not 1 <= count <= MOST_PARTITIONS - service.machine.partition_count:
        limit = f"a topic has 1 partition or more, and all topics together up to {MOST_PARTITIONS}"
        return _refused(row, ErrorCode.invalid_partitions, limit)
    if not asked.assignments and asked.replication_factor not in (-1, *range(1, replicas + 1)):
        factor = f"every topic is on all members: a replication factor is 1 to {replicas}"
        return _refused(row, ErrorCode.invalid_replication_factor, factor)
    for config in asked.configs:
        if SETTINGS.get(config.name, config.value) != config.value or config.name not in _SETTABLE:
            message = f"{config.name}={config.value} is not supported: {_WHY_SETTINGS}"
            return _refused(row, ErrorCode.invalid_config, message)
    topic_id = os.urandom(16)
    row["topic_id"] = KafkaTopic(topic_id, asked.name, []).uuid
    return row, CreateKafkaTopic(topic_id, asked.name, count)


_SETTABLE = {*SETTINGS, "min.insync.replicas"}
_WHY_SETTINGS = (
    "topics have no settings of their own; a majority acknowledges, nothing is compacted, and retention"
    " is that of the log"
)


def delete_topics(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    asked = getattr(fields, "topics", None)
    if asked is None:
        wanted = [_deletion(service, call, name, None) for name in fields.topic_names]
    else:
        wanted = [_deletion(service, call, each.name, each.topic_id) for each in asked]
    change(service, call, wanted, "responses")


def _deletion(
    service: KafkaService, call: KafkaCall, name: str | None, topic_id: Any
) -> tuple[Row, Command | None]:
    machine = service.machine
    topic = machine.by_id.get(topic_id.bytes) if name is None else machine.topics.get(name)
    if topic is not None:
        name, topic_id = topic.name, topic.uuid
    row: Row = {"name": name, "topic_id": topic_id}
    if name is not None and (denied := call.denied(Right.ADMIN, Kind.TOPIC, name)):
        return _refused(row, denied)
    if not service.leads:
        return _refused(row, ErrorCode.not_controller)
    if topic is None:
        unknown = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        return _refused(row, unknown, "" if name is None else f"there is no topic {name}")
    return row, DeleteKafkaTopic(topic.topic_id)


def create_partitions(service: KafkaService, call: KafkaCall) -> None:
    change(service, call, [_growth(service, call, each) for each in call.fields.topics], "results")


def _growth(service: KafkaService, call: KafkaCall, asked: Any) -> tuple[Row, Command | None]:
    row: Row = {"name": asked.name}
    topic = service.machine.topics.get(asked.name)
    if denied := call.denied(Right.ADMIN, Kind.TOPIC, asked.name):
        return _refused(row, denied)
    if not service.leads:
        return _refused(row, ErrorCode.not_controller)
    if topic is None:
        return _refused(row, ErrorCode.unknown_topic_or_partition, f"there is no topic {asked.name}")
    now = len(topic.partitions)
    if not now < asked.count <= now + MOST_PARTITIONS - service.machine.partition_count:
        limit = (
            f"topic {asked.name} has {now} partitions and can only grow, and all topics together have up"
            f" to {MOST_PARTITIONS}"
        )
        return _refused(row, ErrorCode.invalid_partitions, limit)
    return row, GrowKafkaTopic(topic.topic_id, asked.count)


# ---------------------------------------------------------------- Settings

_TOPIC, _BROKER = 2, 4
_DEFAULT, _STRING = 5, 2


def describe_configs(service: KafkaService, call: KafkaCall) -> None:
    """The settings of topics and brokers, all read-only."""
    results = []
    resources = {(each.resource_type, each.resource_name): each for each in call.fields.resources}
    for asked in resources.values():  # one that is named twice is told of once
        code, kind = _configs_refusal(service, call, asked), asked.resource_type
        wanted = asked.configuration_keys
        settings = {
            **SETTINGS,
            "max.message.bytes": str(service.most_batch_bytes),
            "min.insync.replicas": str(len(service.nodes) // 2 + 1),
        }
        if kind == _BROKER:
            settings["num.partitions"] = str(service.options.partitions)
            settings["auto.create.topics.enable"] = str(service.options.auto_create_topics).lower()
        configs = [
            {
                "name": key,
                "value": value,
                "read_only": True,
                "is_default": True,
                "config_source": _DEFAULT,
                "config_type": _STRING,
            }
            for key, value in settings.items()
            if not code and (wanted is None or key in wanted)
        ]
        row = {"resource_type": kind, "resource_name": asked.resource_name, "configs": configs}
        results.append({**row, "error_code": code})
    call.answer({"results": results}, first_code(results))


def _configs_refusal(service: KafkaService, call: KafkaCall, asked: Any) -> ErrorCode:
    if asked.resource_type == _BROKER:
        if denied := call.denied(Right.READ, Kind.CLUSTER):
            return denied
        is_known = asked.resource_name in ("", *map(str, service.nodes))
        return ErrorCode.none if is_known else ErrorCode.invalid_request
    if asked.resource_type != _TOPIC:
        return ErrorCode.invalid_request
    if denied := _unseen(call, asked.resource_name):
        return denied
    if asked.resource_name not in service.machine.topics:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none
