"""What one request of a client of Kafka may cost."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from harness.kafka.wire import KafkaWire
from quorumlog import LocalCluster
from quorumlog.config import KafkaOptions, LimitOptions
from quorumlog.errors import ProtocolViolation
from quorumlog.kafka import codec, endpoint, fetching
from quorumlog.kafka.codec import KafkaRequest
from quorumlog.kafka.endpoint import KafkaEndpoint
from quorumlog.kafka.service import KafkaCall
from quorumlog.measures import Requests
from quorumlog.net.quotas import Quotas
from quorumlog.server.free_ports import free_ports
from tests.kafka.batches import made_batch
from tests.waiting import eventually

PARTITIONS = 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    at = f"127.0.0.1:{free_ports(1)[0]}"

    def endpoints(member_id: str) -> list[Any]:
        return [KafkaEndpoint(KafkaOptions(at), member_id, {member_id: at})]

    with LocalCluster(members=1, endpoints=endpoints):
        with KafkaWire(at) as wire:
            topic = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1}
            topic |= {"assignments": [], "configs": []}

            def created() -> bool:
                asked = wire.ask("create_topics", 2, topics=[topic], timeout=5_000, validate_only=False)
                return asked.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists)

            eventually(created, what="a topic")
        yield at


@pytest.fixture
def wire(address: str) -> Iterator[KafkaWire]:
    with KafkaWire(address) as made:
        yield made


def test_what_is_named_again_and_again_is_told_of_once(wire: KafkaWire) -> None:
    names = [{"name": "t"}, {"name": "t"}, {"name": "u-is-no-topic!"}, {"name": "t"}]
    told = wire.ask("metadata", 1, topics=names).topics
    assert [(each.name, len(each.partitions)) for each in told] == [("t", 3), ("u-is-no-topic!", 0)]
    described = wire.ask("describe_groups", 0, groups=["g", "h", "g"]).groups
    assert [each.group_id for each in described] == ["g", "h"]
    group = {"group_id": "g", "topics": None}
    fetched = wire.ask("offset_fetch", 8, groups=[group, group], require_stable=False).groups
    assert [each.group_id for each in fetched] == ["g"]


def test_a_topic_that_is_named_with_many_ids_is_told_of_once(wire: KafkaWire) -> None:
    named = [{"name": "t", "topic_id": UUID(int=number)} for number in range(1, 5)]
    told = ask_metadata(wire, named)
    assert [(each.name, len(each.partitions)) for each in told] == [("t", 3)]
    by_id = {"name": None, "topic_id": told[0].topic_id}
    others = [{"name": None, "topic_id": UUID(int=number)} for number in (1, 2, 1)]
    told = ask_metadata(wire, [by_id, *others, by_id])
    assert [len(each.partitions) for each in told] == [3, 0, 0]


def ask_metadata(wire: KafkaWire, topics: list[dict[str, Any]]) -> Any:
    options = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return wire.ask("metadata", 12, topics=topics, **options).topics


def test_what_has_its_settings_asked_for_again_and_again_is_told_of_once(wire: KafkaWire) -> None:
    topic = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    broker = {**topic, "resource_type": 4, "resource_name": ""}
    resources = [topic, broker, topic, broker, {**broker, "resource_name": "0"}]
    resources += [{**broker, "resource_name": str(number)} for number in range(1_000, 1_003)]
    told = wire.ask(
        "describe_configs", 4, resources=resources, include_synonyms=False, include_documentation=False
    ).results
    found = [(each.resource_type, each.resource_name, bool(each.configs)) for each in told]
    unknown = [(4, str(number), False) for number in range(1_000, 1_003)]
    assert found == [(2, "t", True), (4, "", True), (4, "0", True), *unknown]


def test_a_fetch_that_names_a_partition_twice_does_not_wait(wire: KafkaWire) -> None:
    one = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    found = wire.ask(
        "fetch",
        4,
        replica_id=-1,
        max_wait=50_000,
        min_bytes=8 << 20,
        max_bytes=8 << 20,
        isolation_level=0,
        topics=[{"topic": "t", "partitions": [one, {**one, "partition": 1}, one]}],
    )
    codes = [each.error_code for each in found.responses[0].partitions]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.invalid_request]


def offsets_by_time(wire: KafkaWire, *partitions: int) -> list[tuple[Any, int]]:
    asked = [{"partition_index": each, "timestamp": 1_002} for each in partitions]
    told = wire.ask(
        "list_offsets", 1, replica_id=-1, topics=[{"name": "t", "partitions": asked}]
    ).topics[0]
    return [(each.error_code, each.offset) for each in told.partitions]


def produce(wire: KafkaWire, partition: int, batch: bytes) -> None:
    data = [{"name": "t", "partition_data": [{"index": partition, "records": batch}]}]
    told = wire.ask("produce", 3, transactional_id=None, acks=-1, timeout=5_000, topic_data=data)
    assert told.responses[0].partition_responses[0].error_code is ErrorCode.none


def gzipped(batch: bytes, count: int) -> bytes:
    """`count`: of records, as it says."""
    packing = zlib.compressobj(wbits=31)
    records = packing.compress(batch[61:]) + packing.flush()
    checked = pack(">hi", 1, count - 1) + batch[27:57] + pack(">i", count) + records
    return pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def test_what_is_unpacked_to_find_a_time_is_bounded(
    wire: KafkaWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = made_batch([b"a", b"b", b"c"])
    for partition in range(PARTITIONS):
        produce(wire, partition, gzipped(batch, 3))
    wrong = (ErrorCode.invalid_request, -1)
    assert offsets_by_time(wire, 0, 1, 0, 2) == [(0, 2), (0, 2), wrong, (0, 2)]
    monkeypatch.setattr(fetching, "_MOST_LOOKED_AT", 6)
    assert offsets_by_time(wire, 0, 1, 2) == [(0, 2), (0, 2), (0, 0)], "the last one by its header"
    monkeypatch.setattr(fetching, "_MOST_LOOKED_AT", 1_000)
    monkeypatch.setattr(fetching, "_MOST_UNPACKED_BYTES", 10)
    assert offsets_by_time(wire, 0, 1) == [(0, 0), (0, 0)]


def test_an_answer_that_cannot_be_said_ends_its_own_connection_alone() -> None:
    """A name may be longer in newer versions of the protocol than older ones can tell of."""
    seen: list[Exception] = []
    client, slot = answering(seen)
    values = {"protocol_name": "n" * 40_000, "protocol_type": None, "leader": "", "member_id": ""}
    client._answered(slot, {**values, "members": []}, 0)
    assert isinstance(seen[0], ProtocolViolation)


class Transmission:
    """Of a connection, what a client's session uses."""

    closed, is_held, beside_bytes, requests_bytes, meter = False, False, 0, 0, None
    written: list[Any]

    def __init__(self, seen: list[Exception]) -> None:
        self.violate, self.written = seen.append, []

    def hold_beside(self, size_bytes: int) -> None:
        self.beside_bytes = size_bytes

    def hold_requests(self, size_bytes: int) -> None:
        self.requests_bytes = size_bytes

    def write(self, buffers: list[Any]) -> None:
        self.written += buffers


def answering(seen: list[Exception]) -> tuple[Any, Any]:
    """A client with a request that waits for its answer, and that request."""
    client: Any = object.__new__(endpoint._KafkaSession)
    client._connection, client._slots, client._held = Transmission(seen), deque(), deque()
    client._answer_bytes = client._ahead_bytes = client._held_bytes = client._long_polls = 0
    client._ahead = endpoint.RequestsAhead()
    client._is_sending = client._is_going_on = False
    client._throttle_ms = 0
    client.caller, client.is_member = SimpleNamespace(is_checked=False), False
    client._endpoint = SimpleNamespace(requests=Requests())
    return client, asked_by(client)


def asked_by(client: Any) -> Any:
    data = memoryview(bytes(10_000))
    request = KafkaRequest(codec.JOIN_GROUP, 5, 1, "", data, data)
    slot = endpoint._Slot(request.size_bytes)
    slot.call = KafkaCall(request, object(), client, lambda values, code: None)
    client._slots.append(slot)
    client._ahead_bytes += request.size_bytes
    client._long_polls += 1
    client._ahead.begin(request.size_bytes)
    return slot


def test_answers_that_wait_for_those_before_them_are_counted_and_their_requests_are_let_go() -> None:
    client, first = answering([])
    second = asked_by(client)
    client._answered(second, {"member_id": "m" * 30_000}, 0)
    assert client._connection.beside_bytes > 30_000 and not client._connection.written
    assert second.call.fields is None and not second.call.request.data
    client._answered(first, {"member_id": ""}, 0)
    assert client._connection.beside_bytes == 0 == client._ahead_bytes
    assert (client._ahead.requests, client._ahead.size_bytes) == (0, 0)
    assert len(client._connection.written) == 4


class Counted:
    """Of a connection, what quotas use."""

    peer_host, user = "a", ""
    meter: Any = None


def test_an_answer_to_a_request_without_a_quota_gives_no_place_back() -> None:
    client, waiting = answering([])
    quotas = Quotas()
    quotas.set(LimitOptions(address_requests=1))
    counted = Counted()
    quotas.enter(counted)
    meter = client._connection.meter = counted.meter
    assert meter.begin(100) is None
    client._answered(waiting, {"member_id": ""}, 0)
    assert meter.begin(100) is not None
    meter.finish(100)
    assert meter.begin(100) is None


def test_room_for_bytes_is_told_though_there_is_none_for_more_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection without a request may have one."""
    monkeypatch.setattr(endpoint, "ALL_AHEAD", 1)
    ahead, told = endpoint.RequestsAhead(), list[str]()
    waiting: Any = object.__new__(endpoint._KafkaSession)
    waiting.go_on = lambda: told.append("room")
    for _ in range(2):
        ahead.begin(endpoint.ALL_AHEAD_BYTES)
    ahead.wait(waiting)
    ahead.end(1, endpoint.ALL_AHEAD_BYTES)
    assert told == ["room"]


def test_room_that_a_request_frees_which_is_answered_at_once_is_told_to_who_waits_longer() -> None:
    ahead, began = endpoint.RequestsAhead(), list[str]()
    large, small = (object.__new__(endpoint._KafkaSession) for _ in range(2))

    def large_goes_on() -> None:
        if ahead.has_room(endpoint.ALL_AHEAD_BYTES):
            began.append("large")
        else:
            ahead.wait(large)

    def small_goes_on() -> None:
        began.append("small")
        ahead.begin(10)
        ahead.end(2, 20)  # with one that had waited for it

    large.go_on, small.go_on = large_goes_on, small_goes_on  # type: ignore[method-assign]
    for size_bytes in (10, 10):
        ahead.begin(size_bytes)
    ahead.wait(large)
    ahead.wait(small)
    ahead.end(1, 10)
    assert began == ["small", "large"]


def test_a_lost_connection_waits_for_no_room() -> None:
    client, _ = answering([])
    client._timer, client.go_on = None, pytest.fail
    client._ahead.wait(client)
    client.lost()
    assert (client._ahead.requests, client._ahead.size_bytes) == (0, 0)


def test_requests_that_wait_for_a_quota_are_counted_until_they_begin() -> None:
    client, _ = answering([])
    data = memoryview(bytes(5_000))
    held = [KafkaRequest(codec.API_VERSIONS, 0, number, "", data, data) for number in range(3)]
    within = iter((True, False))
    client._held, client._is_within = deque(held), lambda request: next(within)
    client._held_bytes = sum(each.size_bytes for each in held)
    client.go_on()
    assert len(client._held) == 2
    assert client._connection.requests_bytes == sum(each.size_bytes for each in held[1:])


def fetch_that_waits(wire: KafkaWire) -> int:
    one = {"partition": 0, "fetch_offset": latest(wire), "partition_max_bytes": 1_000}
    topics = [{"topic": "t", "partitions": [one]}]
    values = {"replica_id": -1, "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1_000}
    return wire.send("fetch", 4, isolation_level=0, topics=topics, **values)


def latest(wire: KafkaWire) -> int:
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    (told,) = wire.ask("list_offsets", 1, replica_id=-1, topics=asked).topics[0].partitions
    return int(told.offset)


def test_requests_beyond_the_bound_of_all_connections_wait_and_are_answered(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches that wait fill it up. Every connection still has one request that is small at a time."""
    monkeypatch.setattr(endpoint, "ALL_AHEAD", 3)
    with ExitStack() as stack:
        waiting, other, writing = (stack.enter_context(KafkaWire(address)) for _ in range(3))
        fetches = [fetch_that_waits(waiting)]
        fetches += [waiting.send("fetch", 4, **no_topics()) for _ in range(5)]
        numbers = [other.send("metadata", 1, topics=[{"name": "t"}]) for _ in range(20)]
        assert all(other.receive("metadata", 1, number).topics for number in numbers)
        produce(writing, 0, made_batch([b"x" * 100]))  # which the fetch has waited for
        assert all(waiting.receive("fetch", 4, number) for number in fetches)


def no_topics() -> dict[str, Any]:
    values = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1_000}
    return {**values, "isolation_level": 0, "topics": []}


def test_many_requests_that_wait_leave_each_other_connection_a_large_one(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "ALL_AHEAD", 3)
    begin = endpoint.RequestsAhead.begin
    seen: list[int] = []

    def noted(ahead: endpoint.RequestsAhead, size_bytes: int) -> None:
        begin(ahead, size_bytes)
        seen.append(ahead.requests)

    monkeypatch.setattr(endpoint.RequestsAhead, "begin", noted)
    with ExitStack() as stack:
        waiting, other = (stack.enter_context(KafkaWire(address)) for _ in range(2))
        latest(other)
        fetch_that_waits(waiting)
        for _ in range(5):
            waiting.send("fetch", 4, **no_topics())
        eventually(lambda: max(seen) == 3, what="as many requests as may be")
        produce(other, 1, made_batch([b"x" * 40_000]))


def test_large_requests_behind_one_that_waits_leave_room_for_those_of_others(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "ALL_AHEAD_BYTES", 100_000)
    topics = [{"topic": f"{number:0200}", "partitions": []} for number in range(200)]
    with ExitStack() as stack:
        waiting, other, writing = (stack.enter_context(KafkaWire(address)) for _ in range(3))
        fetch = fetch_that_waits(waiting)
        numbers = [waiting.send("fetch", 4, **{**no_topics(), "topics": topics}) for _ in range(5)]
        latest(other)
        produce(other, 1, made_batch([b"x" * 40_000]))
        produce(writing, 0, made_batch([b"x" * 100]))  # which the first fetch has waited for
        assert all(waiting.receive("fetch", 4, number) for number in (fetch, *numbers))


def test_bytes_of_requests_are_bounded_over_all_connections_and_every_one_is_answered(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = made_batch([b"x" * 40_000])
    monkeypatch.setattr(endpoint, "ALL_AHEAD_BYTES", 100_000)
    seen: list[int] = []
    begin = endpoint.RequestsAhead.begin

    def noted(ahead: endpoint.RequestsAhead, size_bytes: int) -> None:
        begin(ahead, size_bytes)
        seen.append(ahead.size_bytes)

    monkeypatch.setattr(endpoint.RequestsAhead, "begin", noted)
    data = [{"name": "t", "partition_data": [{"index": 1, "records": batch}]}]
    values: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout": 60_000}
    with ExitStack() as stack:
        wires = [stack.enter_context(KafkaWire(address)) for _ in range(8)]
        for wire in wires:
            latest(wire)  # the first request of a connection is small
        sent = [(wire, wire.send("produce", 3, topic_data=data, **values)) for wire in wires * 4]
        offsets = [
            wire.receive("produce", 3, number).responses[0].partition_responses[0].base_offset
            for wire, number in sent
        ]
    assert sorted(offsets) == list(range(min(offsets), min(offsets) + 32))
    assert max(seen) <= 100_000
