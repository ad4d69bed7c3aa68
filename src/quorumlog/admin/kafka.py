"""The port for clients of Kafka on a member."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kio.schema.errors import ErrorCode

from quorumlog.admin.looks import Look, Sample, Table, request_samples
from quorumlog.kafka.endpoint import KafkaEndpoint


def look_at_kafka(endpoint: KafkaEndpoint) -> Look:
    """On the loop of its member, which decides whether it is ready."""
    group = endpoint.group or ""
    if not endpoint.is_open:
        return Look(group, "kafka", unready=("its port for clients of Kafka is not open",))
    return Look(
        group,
        "kafka",
        leads=endpoint.service.leads,
        samples=tuple(_samples(endpoint)),
        tables=partial(_tables, endpoint),
    )


def _samples(endpoint: KafkaEndpoint) -> Iterator[Sample]:
    machine = endpoint.service.machine
    yield Sample("quorumlog_kafka_topics", len(machine.topics))
    yield Sample("quorumlog_kafka_partitions", machine.partition_count)
    yield Sample("quorumlog_kafka_consumer_groups", len(machine.groups))
    yield from request_samples("kafka", endpoint.requests, lambda code: ErrorCode(code).name)


def _tables(endpoint: KafkaEndpoint) -> list[Table]:
    topics = list(endpoint.service.machine.topics.values())
    rows = [
        (topic.name, len(topic.partitions), sum(each.end_offset for each in topic.partitions))
        for topic in topics
    ]
    return [Table("Topics of Kafka's clients", ("topic", "partitions", "records ever"), rows)]
