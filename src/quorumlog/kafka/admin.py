"""KafkaAdmin: topics and consumer groups, for the command line: a blocking client of the port."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, Self, TypeVar

from kio.schema.errors import ErrorCode

from quorumlog.config import parse_address
from quorumlog.errors import BadRequest, Forbidden, NotAuthenticated, RequestTimeout, Unreachable
from quorumlog.kafka import codec
from quorumlog.kafka.codec import Values
from quorumlog.net.credentials import MECHANISM, Proof, user_of_clients
from quorumlog.net.hello import Challenge
from quorumlog.net.tls import tls_of_clients

RETRY_S = 0.1
_AGAIN = {
    ErrorCode.not_controller,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_enough_replicas,
}
_DENIED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
}
T = TypeVar("T")


class KafkaTopicRow(NamedTuple):
    name: str
    topic_id: str
    partitions: int


class PartitionRow(NamedTuple):
    partition: int
    start_offset: int
    end_offset: int
    """Offset of the next record."""


class KafkaGroupRow(NamedTuple):
    name: str
    state: str


class GroupOffsetRow(NamedTuple):
    topic: str
    partition: int
    committed_offset: int
    end_offset: int
    member: str
    """The member that reads the partition; empty: none."""


class _Later(Exception):
    """Try again once there is a new leader."""


class KafkaAdmin:
    """`with KafkaAdmin(["10.0.0.1:9092"], timeout_ms=10_000) as admin: admin.topics()`. Calls raise
    BadRequest, Forbidden, NotAuthenticated, RequestTimeout, Unreachable."""

    def __init__(self, servers: Sequence[str], timeout_ms: int) -> None:
        """`servers`: HOST:PORT of the members' Kafka ports; one that answers is enough."""
        self._servers = list(servers)
        self._timeout_s = timeout_ms / 1000
        self._socket: socket.socket | None = None
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # ---------------------------------------------------------------- topics

    def topics(self) -> list[KafkaTopicRow]:
        return [
            KafkaTopicRow(each.name, str(each.topic_id), len(each.partitions))
            for each in sorted(self._led(self._metadata).topics, key=lambda topic: str(topic.name))
        ]

    def create_topic(self, name: str, partitions: int) -> None:
        row = {"name": name, "num_partitions": partitions, "replication_factor": -1}
        self._change(codec.CREATE_TOPICS, 5, {"topics": [row]}, "topics")

    def delete_topic(self, name: str) -> None:
        self._change(codec.DELETE_TOPICS, 5, {"topic_names": [name]}, "responses")

    def grow_topic(self, name: str, partitions: int) -> None:
        row = {"name": name, "count": partitions, "assignments": None}
        self._change(codec.CREATE_PARTITIONS, 2, {"topics": [row]}, "results")

    def partitions(self, name: str) -> list[PartitionRow]:
        def ask() -> list[PartitionRow]:
            topic = next((each for each in self._metadata().topics if each.name == name), None)
            if topic is None:
                raise BadRequest(f"there is no topic {name}")
            numbers = [each.partition_index for each in topic.partitions]
            starts, ends = (self._offsets({name: numbers}, timestamp) for timestamp in (-2, -1))
            return [PartitionRow(each, starts[name, each], ends[name, each]) for each in numbers]

        return self._led(ask)

    def _offsets(self, wanted: dict[str, list[int]], timestamp: int) -> dict[tuple[str, int], int]:
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": each, "timestamp": timestamp} for each in numbers],
            }
            for name, numbers in wanted.items()
        ]
        answer = self._ask(codec.LIST_OFFSETS, 5, {"replica_id": -1, "topics": topics})
        found: dict[tuple[str, int], int] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                _check(row.error_code)
                found[topic.name, row.partition_index] = row.offset
        return found

    # ---------------------------------------------------------------- groups

    def groups(self) -> list[KafkaGroupRow]:
        def ask() -> list[KafkaGroupRow]:
            answer = self._ask(codec.LIST_GROUPS, 4, {"states_filter": []})
            _check(answer.error_code)
            return sorted(KafkaGroupRow(each.group_id, each.group_state) for each in answer.groups)

        return self._led(ask)

    def offsets_of(self, group: str) -> list[GroupOffsetRow]:
        def ask() -> list[GroupOffsetRow]:
            answer = self._ask(codec.OFFSET_FETCH, 7, {"group_id": group, "topics": None})
            _check(answer.error_code)
            committed = {
                (topic.name, row.partition_index): row.committed_offset
                for topic in answer.topics
                for row in topic.partitions
            }
            wanted: dict[str, list[int]] = {}
            for name, number in committed:
                wanted.setdefault(name, []).append(number)
            ends, members = self._offsets(wanted, -1), self._members_of(group)
            return [
                GroupOffsetRow(*place, offset, ends[place], members.get(place, ""))
                for place, offset in sorted(committed.items())
            ]

        return self._led(ask)

    def _members_of(self, group: str) -> dict[tuple[str, int], str]:
        """The member that reads each partition, if the assignment is in the consumer protocol's
        format."""
        (described,) = self._ask(codec.DESCRIBE_GROUPS, 4, {"groups": [group]}).groups
        _check(described.error_code)
        found: dict[tuple[str, int], str] = {}
        for member in described.members:
            for name, numbers in codec.assigned(member.member_assignment).items():
                found |= dict.fromkeys(((name, each) for each in numbers), member.member_id)
        return found

    # ---------------------------------------------------------------- asking

    def _metadata(self) -> Any:
        return self._ask(codec.METADATA, 12, {"topics": None})

    def _change(self, api_key: int, version: int, values: Values, field: str) -> None:
        def ask() -> None:
            given = {**values, "timeout": int(self._timeout_s * 1000)}
            for row in getattr(self._ask(api_key, version, given), field):
                _check(row.error_code, getattr(row, "error_message", None))

        self._led(ask)

    def _led(self, ask: Callable[[], T]) -> T:
        """Ask the leader, once there is one."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._go_to_leader()
                return ask()
            except _Later as later:
                why = str(later)
            except OSError as error:
                why = f"{', '.join(self._servers)} did not answer: {error}"
            self.close()
            if time.monotonic() > deadline_s:
                raise RequestTimeout(f"no answer within {self._timeout_s:g} s: {why}")
            time.sleep(RETRY_S)

    def _go_to_leader(self) -> None:
        if self._socket is not None:
            return
        failures = []
        for address in self._servers:
            try:
                self._connect(*parse_address(address))
                answer = self._metadata()
                places = {each.node_id: (each.host, each.port) for each in answer.brokers}
                if answer.controller_id not in places:
                    raise _Later("nobody leads")
                self.close()
                self._connect(*places[answer.controller_id])
                return
            except OSError as error:
                self.close()
                failures.append(f"{address}: {error}")
        raise Unreachable("; ".join(failures))

    def _connect(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), self._timeout_s)
        tls, user = tls_of_clients(), user_of_clients()
        if tls is not None:
            self._socket = tls.context.wrap_socket(self._socket, server_hostname=host)
        if user is None:
            return
        _check(self._ask(codec.SASL_HANDSHAKE, 1, {"mechanism": MECHANISM}).error_code)
        proof, data = Proof(user), b""
        while not proof.is_whole:
            said = proof.answer(Challenge(mechanism=MECHANISM, data=data))
            if proof.is_whole:
                return
            answer = self._ask(codec.SASL_AUTHENTICATE, 1, {"auth_bytes": said})
            if answer.error_code:
                raise NotAuthenticated(answer.error_message or "the server gives no reason")
            data = answer.auth_bytes

    def _ask(self, api_key: int, version: int, values: Values) -> Any:
        """Raises OSError."""
        assert self._socket is not None
        self._socket.sendall(codec.encoded_request(api_key, version, next(self._numbers), values))
        return codec.decoded_response(api_key, version, self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            found = self._socket.recv(size - len(data))
            if not found:
                raise ConnectionError(
                    "the server has closed the connection: the address must be that of --kafka, not of"
                    " the log; if it speaks TLS, name the CA to trust"
                )
            data += found
        return bytes(data)


def _check(code: int, message: str | None = None) -> None:
    error = ErrorCode(code)
    words = message or error.name.replace("_", " ")
    if error in _AGAIN:
        raise _Later(words)
    if error in _DENIED:
        raise Forbidden(words)
    if error:
        raise BadRequest(words)
