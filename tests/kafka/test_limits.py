"""What one client may take: requests that wait, bytes a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from kio.schema.errors import ErrorCode

from harness.kafka.wire import KafkaWire
from quorumlog.config import LimitOptions
from quorumlog.net import access
from quorumlog.net.limits import process_limits
from quorumlog.net.quotas import Quotas
from tests.kafka.batches import made_batch
from tests.kafka.cluster import KafkaCluster
from tests.kafka.test_served import create, metadata_values, produced
from tests.waiting import eventually


class QuotaClock:
    """While it stands nothing that was taken is made good."""

    def __init__(self) -> None:
        self._stands_at_s: float | None = None

    def __call__(self) -> float:
        return time.monotonic() if self._stands_at_s is None else self._stands_at_s

    @contextmanager
    def standing(self, kafka: KafkaCluster, limits: LimitOptions) -> Iterator[None]:
        """It goes on once a request was held by these limits."""
        over = process_limits().over
        before = over["address_bytes_per_second"]
        self._stands_at_s = time.monotonic()
        set_limits(kafka, limits)
        try:
            yield
            eventually(lambda: over["address_bytes_per_second"] > before, what="a request that is held")
        finally:
            self._stands_at_s = None


@pytest.fixture(scope="module")
def clock() -> QuotaClock:
    return QuotaClock()


@pytest.fixture(scope="module")
def kafka(clock: QuotaClock) -> Iterator[KafkaCluster]:
    with patch.object(access, "Quotas", partial(Quotas, clock)), KafkaCluster() as cluster:
        yield cluster


def set_limits(kafka: KafkaCluster, limits: LimitOptions) -> None:
    """They hold when this returns."""
    server, is_set = kafka.cluster.server("n0"), Event()
    assert server.loop is not None
    server.loop.call_soon_threadsafe(server.set_limits, limits)
    server.loop.call_soon_threadsafe(is_set.set)
    assert is_set.wait(60)


def sent(wire: KafkaWire, times: int) -> list[int]:
    return [wire.send("metadata", 9, **metadata_values(9, ())) for _ in range(times)]


def held(wire: KafkaWire, numbers: list[int]) -> list[int]:
    """Milliseconds for which each of these was held."""
    answers = [wire.receive("metadata", 9, number) for number in numbers]
    return [round(each.throttle_time.total_seconds() * 1000) for each in answers]


def asked(wire: KafkaWire, times: int) -> list[int]:
    return held(wire, sent(wire, times))


def test_who_asks_for_more_than_it_may_waits_and_is_told_so(
    kafka: KafkaCluster, clock: QuotaClock
) -> None:
    with kafka.wire() as wire:
        assert asked(wire, 3) == [0, 0, 0]
        try:
            with clock.standing(kafka, LimitOptions(address_bytes_per_second=2_000)):
                numbers = sent(wire, 30)
            told_ms = held(wire, numbers)
            assert any(told_ms)
            assert len(told_ms) == 30
        finally:
            set_limits(kafka, LimitOptions())
        asked(wire, 10)  # what is owed is forgotten
        assert asked(wire, 3) == [0, 0, 0]


def test_requests_that_are_sent_ahead_are_all_answered(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        assert len(asked(wire, 3_000)) == 3_000


def test_a_request_that_waits_is_not_looked_at_more_often_the_longer_it_waits(
    kafka: KafkaCluster, clock: QuotaClock
) -> None:
    partition = {"partition_index": 0, "timestamp": -1}
    values = {"replica_id": -1, "topics": [{"name": "t", "partitions": [partition]}]}
    over = process_limits().over
    before = over["address_bytes_per_second"]
    try:
        with kafka.wire() as wire:
            create(wire, "t")
            with clock.standing(kafka, LimitOptions(address_bytes_per_second=10_000)):
                numbers = [wire.send("list_offsets", 1, **values) for _ in range(600)]
            for number in numbers:
                wire.receive("list_offsets", 1, number)
    finally:
        set_limits(kafka, LimitOptions())
    assert 0 < over["address_bytes_per_second"] - before < 10 * 600


def test_a_client_that_came_while_the_users_were_unknown_may_send_large_requests_later(
    kafka: KafkaCluster,
) -> None:
    access, loop = kafka.endpoints["n0"].access, kafka.cluster.server("n0").loop
    assert loop is not None
    with kafka.wire() as wire:
        create(wire, "large")
    learn, users = access.learn, access.users

    def forget() -> None:
        learn(None, "they may have changed", users)
        access.learn = lambda *args, **more: None  # type: ignore[method-assign]

    def remember() -> None:
        access.learn = learn  # type: ignore[method-assign]
        learn(users)

    loop.call_soon_threadsafe(forget)
    try:
        with kafka.wire("n0") as wire:
            wire.ask("metadata", 1, topics=[])
            assert access.users is None
            loop.call_soon_threadsafe(remember)
            kafka.leader()
            told = produced(wire, "large", made_batch([bytes(100_000)]))
            assert told.error_code == ErrorCode.none
    finally:
        loop.call_soon_threadsafe(remember)


def test_a_group_with_more_members_than_requests_may_wait_becomes_stable_and_stays_it(
    kafka: KafkaCluster,
) -> None:
    join: dict[str, Any] = {"group_id": "g", "session_timeout": 60_000, "rebalance_timeout": 60_000}
    join |= {"member_id": "", "protocol_type": "consumer"}
    join |= {"protocols": [{"name": "range", "metadata": b""}]}
    set_limits(kafka, LimitOptions(address_requests=1))
    try:
        with ExitStack() as stack:
            wires = [stack.enter_context(kafka.wire()) for _ in range(3)]
            numbers = [wire.send("join_group", 3, **join) for wire in wires]
            joined = [
                wire.receive("join_group", 3, number)
                for wire, number in zip(wires, numbers, strict=True)
            ]
            assert sorted(len(each.members) for each in joined) == [0, 0, 3]
            of_member = [
                {"group_id": "g", "generation_id": each.generation_id, "member_id": each.member_id}
                for each in joined
            ]
            members = list(zip(wires, of_member, joined, strict=True))
            members.sort(key=lambda each: each[2].member_id == each[2].leader)  # who assigns, last
            numbers = [
                wire.send("sync_group", 2, **values, assignments=[]) for wire, values, _ in members
            ]
            for (wire, _, _), number in zip(members, numbers, strict=True):
                assert wire.receive("sync_group", 2, number).error_code == ErrorCode.none
            writer = stack.enter_context(kafka.wire())
            create(writer, "u")
            set_limits(kafka, LimitOptions(address_bytes_per_second=1_000))
            produced(
                writer, "u", made_batch([bytes(900_000)])
            )  # which is made good in a quarter of an hour
            for wire, values, _ in members:
                assert wire.ask("heartbeat", 2, **values).error_code == ErrorCode.none
            for wire, values, _ in members:
                left = wire.ask("leave_group", 2, group_id="g", member_id=values["member_id"])
                assert left.error_code == ErrorCode.none
    finally:
        set_limits(kafka, LimitOptions())
