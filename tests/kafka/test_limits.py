"""What one client may take: requests that wait, bytes a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.kafka.wire import KafkaWire
from quorumlog.config import LimitOptions
from quorumlog.net.limits import process_limits
from tests.kafka.cluster import KafkaCluster
from tests.kafka.test_served import create, metadata_values


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


def set_limits(kafka: KafkaCluster, limits: LimitOptions) -> None:
    server = kafka.cluster.server("n0")
    assert server.loop is not None
    server.loop.call_soon_threadsafe(server.set_limits, limits)


def asked(wire: KafkaWire, times: int) -> list[int]:
    """Milliseconds for which each of these was held."""
    numbers = [wire.send("metadata", 9, **metadata_values(9, ())) for _ in range(times)]
    answers = [wire.receive("metadata", 9, number) for number in numbers]
    return [round(each.throttle_time.total_seconds() * 1000) for each in answers]


def test_who_asks_for_more_than_it_may_waits_and_is_told_so(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        assert asked(wire, 3) == [0, 0, 0]
        set_limits(kafka, LimitOptions(address_bytes_per_second=2_000))
        try:
            held = asked(wire, 30)
            assert any(held)
            assert len(held) == 30
        finally:
            set_limits(kafka, LimitOptions())
        asked(wire, 10)  # what is owed is forgotten
        assert asked(wire, 3) == [0, 0, 0]


def test_requests_that_are_sent_ahead_are_all_answered(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        assert len(asked(wire, 3_000)) == 3_000


def test_a_request_that_waits_is_not_looked_at_more_often_the_longer_it_waits(
    kafka: KafkaCluster,
) -> None:
    partition = {"partition_index": 0, "timestamp": -1}
    values = {"replica_id": -1, "topics": [{"name": "t", "partitions": [partition]}]}
    over = process_limits().over
    before = over["address_bytes_per_second"]
    set_limits(kafka, LimitOptions(address_bytes_per_second=10_000))
    try:
        with kafka.wire() as wire:
            create(wire, "t")
            numbers = [wire.send("list_offsets", 1, **values) for _ in range(600)]
            for number in numbers:
                wire.receive("list_offsets", 1, number)
    finally:
        set_limits(kafka, LimitOptions())
    assert 0 < over["address_bytes_per_second"] - before < 10 * 600
