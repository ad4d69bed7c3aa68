"""Clients of Kafka: an idempotent producer and a member of a consumer group, and what they saw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorumlog.kafka import codec
from quorumlog.testing.promises import Violation
from sim.kafka.batches import made_batch
from sim.kafka.sim_members import SimKafka, SimKafkaConnection

TOPIC, GROUP = "orders", "readers"
TOPIC_ID = bytes(range(16))
PARTITIONS = 3
RETRY_MS = (10.0, 120.0)
TIMEOUT_MS = 1_500.0
MOST_AHEAD = 4
"""Batches of one partition that are sent and not answered; members remember one more."""
SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 1_200, 800, 200.0
DIES = 0.01
"""How often a consumer is killed before it asks for something."""
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class KafkaHistory:
    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    sent: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """By producer and partition, in order."""
    read: dict[Place, bytes] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    """By partition, the highest that was acknowledged."""
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


class _Client(ABC):
    """It asks the members in turn until one of them answers for the partitions."""

    def __init__(self, kafka: SimKafka, history: KafkaHistory, name: str) -> None:
        self._kafka = kafka
        self._cluster = kafka.cluster
        self._history = history
        self._name = name
        self._random = kafka.cluster.stream(f"kafka client {name}")
        self._connection: SimKafkaConnection | None = None
        self._at = 0
        self.is_ending = False

    def _later(self, act: Callable[[], None], at_most_ms: float = RETRY_MS[1]) -> None:
        self._cluster.at(self._random.uniform(RETRY_MS[0], at_most_ms), act)

    def _connected(self) -> SimKafkaConnection | None:
        """None: the next member is down just now."""
        if self._connection is None:
            members = self._cluster.members
            self._at = (self._at + 1) % len(members)
            if members[self._at].is_up:
                lost: list[SimKafkaConnection] = []
                made = self._kafka.connect(
                    members[self._at], lambda data: None, lambda: self._lost(lost[0])
                )
                lost.append(made)
                self._connection = made
        return self._connection

    def _lost(self, connection: SimKafkaConnection) -> None:
        if self._connection is connection:
            self._part()

    def _part(self) -> None:
        """From this member: what it would still answer is not heard."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave()
            self._parted()

    @abstractmethod
    def work(self) -> None:
        """From now on, again and again."""

    @abstractmethod
    def _parted(self) -> None: ...

    def _ask(self, api_key: int, version: int, done: Callable[[Any], None], **fields: Any) -> None:
        connection = self._connection
        assert connection is not None
        answers: list[Any] = []

        def answered(values: Any) -> None:
            answers.append(values)
            if self._connection is connection:
                done(values)

        def overdue() -> None:
            if not answers and self._connection is connection:
                self._part()

        connection.ask(api_key, version, SimpleNamespace(**fields), answered)
        self._cluster.at(TIMEOUT_MS, overdue)


# ---------------------------------------------------------------- Producer


class _Sent(NamedTuple):
    partition: int
    values: tuple[bytes, ...]
    data: bytes


class SimKafkaProducer(_Client):
    def __init__(self, kafka: SimKafka, history: KafkaHistory, name: str, producer_id: int) -> None:
        super().__init__(kafka, history, name)
        self._id = producer_id
        self._sequences = [0] * PARTITIONS
        self._ahead: list[deque[_Sent]] = [deque() for _ in range(PARTITIONS)]
        self._number = 0

    @property
    def is_settled(self) -> bool:
        return not any(self._ahead)

    def work(self) -> None:
        if not self.is_ending:
            partition = self._random.randrange(PARTITIONS)
            if len(self._ahead[partition]) < MOST_AHEAD:
                self._send(self._made(partition))
            self._later(self.work, 60.0)

    def _made(self, partition: int) -> _Sent:
        count = self._random.randrange(1, 4)
        values = [f"{self._name}:{self._number + each}".encode() for each in range(count)]
        self._number += count
        self._history.sent.setdefault((self._name, partition), []).extend(values)
        data = made_batch(values, producer=(self._id, 0, self._sequences[partition]))
        self._sequences[partition] += count
        sent = _Sent(partition, tuple(values), data)
        self._ahead[partition].append(sent)
        return sent

    def _send(self, sent: _Sent) -> None:
        if self._connection is None:
            self._again()
        else:
            self._say(sent)

    def _again(self) -> None:
        """All that is not acknowledged, in order, on a connection to the next member."""
        if self.is_settled or self._connection is not None:
            return
        if self._connected() is None:
            self._later(self._again)
            return
        for ahead in self._ahead:
            for sent in ahead:
                self._say(sent)

    def _say(self, sent: _Sent) -> None:
        rows = [SimpleNamespace(index=sent.partition, records=memoryview(sent.data))]
        self._ask(
            codec.PRODUCE,
            9,
            partial(self._answered, sent),
            transactional_id=None,
            acks=-1,
            timeout=1_000,
            topic_data=[SimpleNamespace(name=TOPIC, partition_data=rows)],
        )

    def _answered(self, sent: _Sent, values: Any) -> None:
        (row,) = values["responses"][0]["partition_responses"]
        code, ahead = row["error_code"], self._ahead[sent.partition]
        if code == ErrorCode.none:
            first = row["base_offset"]
            for delta, value in enumerate(sent.values):
                place = sent.partition, first + delta
                if self._history.acknowledged.setdefault(value, place) != place:
                    raise Violation(f"{value!r} is at two places")
            assert ahead[0] is sent, "answers of one connection come in order"
            ahead.popleft()
            self._history.count("produced")
            return
        if code == ErrorCode.out_of_order_sequence_number:  # all that was before it is acknowledged
            raise Violation(f"{self._name}: what came before {sent.values} in {sent.partition} is gone")
        self._history.count("produced again")
        self._part()

    def _parted(self) -> None:
        self._later(self._again)


# ---------------------------------------------------------------- Consumer


class SimKafkaConsumer(_Client):
    def __init__(self, kafka: SimKafka, history: KafkaHistory, name: str) -> None:
        super().__init__(kafka, history, name)
        self._life = self._step = 0
        """A request of an earlier life has no answer."""
        self._begin()

    def _begin(self) -> None:
        self._member, self._generation = "", -1
        self._positions: dict[int, int] = {}
        self._heartbeat_ms = 0.0

    def work(self) -> None:
        """Until it is killed; then from the beginning, as another one."""
        if not self.is_ending and self._random.random() < DIES:
            self._history.count("consumer killed")
            self._life += 1
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.leave()
            self._begin()
            self._soon(2_000.0)
        elif self._connected() is None:
            self._soon()
        elif self._generation < 0:
            self._join()
        else:
            self._go_on()

    def _soon(self, at_most_ms: float = RETRY_MS[1]) -> None:
        """It goes on; what was to come is not done beside it."""
        self._step += 1
        step = self._step
        self._later(lambda: self.work() if step == self._step else None, at_most_ms)

    def _parted(self) -> None:
        """It is still a member, if it finds the coordinator soon."""
        self._soon()

    def _rejoin(self, code: int) -> None:
        if code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._member = ""
        self._generation, self._positions = -1, {}
        if code in (ErrorCode.not_coordinator, ErrorCode.not_leader_or_follower):
            self._part()
        else:
            self._soon()

    def _ask_next(self, api_key: int, version: int, done: Callable[[Any], None], **fields: Any) -> None:
        life = self._life
        self._ask(
            api_key, version, lambda values: done(values) if life == self._life else None, **fields
        )

    # ------------------------------------------------------------ the group

    def _join(self) -> None:
        self._ask_next(
            codec.JOIN_GROUP,
            3,
            self._joined,
            group_id=GROUP,
            member_id=self._member,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[SimpleNamespace(name="range", metadata=b"")],
        )

    def _joined(self, values: Any) -> None:
        code = values["error_code"]
        if code:
            self._rejoin(code)
            return
        self._member, generation = values["member_id"], values["generation_id"]
        members = sorted(each["member_id"] for each in values["members"])
        shares = {
            member: bytes(range(PARTITIONS))[number :: len(members)]
            for number, member in enumerate(members)
        }
        self._ask_next(
            codec.SYNC_GROUP,
            2,
            partial(self._synced, generation),
            group_id=GROUP,
            member_id=self._member,
            generation_id=generation,
            assignments=[
                SimpleNamespace(member_id=member, assignment=share) for member, share in shares.items()
            ],
        )

    def _synced(self, generation: int, values: Any) -> None:
        if values["error_code"]:
            self._rejoin(values["error_code"])
            return
        self._history.count("joined")
        self._ask_next(
            codec.OFFSET_FETCH,
            5,
            partial(self._found, generation, dict(self._history.committed)),
            group_id=GROUP,
            topics=[SimpleNamespace(name=TOPIC, partition_indexes=list(values["assignment"]))],
        )

    def _found(self, generation: int, committed: dict[int, int], values: Any) -> None:
        """`committed`: what was acknowledged before this was asked."""
        rows = values["topics"][0]["partitions"]
        code = values.get("error_code") or next((r["error_code"] for r in rows if r["error_code"]), 0)
        if code:
            self._rejoin(code)
            return
        for row in rows:
            partition, offset = row["partition_index"], row["committed_offset"]
            if offset < committed.get(partition, -1):
                raise Violation(f"{offset} is committed in {partition}, after {committed[partition]}")
            self._positions[partition] = max(0, offset)
        self._generation = generation
        self._soon()

    # ------------------------------------------------------------ reading

    def _go_on(self) -> None:
        if self._cluster.now_ms - self._heartbeat_ms >= HEARTBEAT_MS or not self._positions:
            self._heartbeat_ms = self._cluster.now_ms
            self._ask_next(
                codec.HEARTBEAT,
                2,
                self._heard,
                group_id=GROUP,
                member_id=self._member,
                generation_id=self._generation,
            )
            return
        rows = [
            SimpleNamespace(partition=partition, fetch_offset=offset, partition_max_bytes=400)
            for partition, offset in self._positions.items()
        ]
        self._ask_next(
            codec.FETCH,
            11,
            self._fetched,
            max_wait=0,
            min_bytes=0,
            max_bytes=2_000,
            topics=[SimpleNamespace(topic=TOPIC, partitions=rows)],
        )

    def _heard(self, values: Any) -> None:
        if values["error_code"]:
            self._rejoin(values["error_code"])
        else:
            self._soon()

    def _fetched(self, values: Any) -> None:
        rows = values["responses"][0]["partitions"]
        code = next((row["error_code"] for row in rows if row["error_code"]), 0)
        if code == ErrorCode.offset_out_of_range:
            raise Violation(f"offsets that were committed or read are out of range: {self._positions}")
        if code:
            self._rejoin(ErrorCode.not_leader_or_follower)
            return
        moved = False
        for row in rows:
            partition = row["partition_index"]
            for offset, value in records_in(b"".join(row["records"])):
                if offset < self._positions[partition]:
                    continue
                if offset != self._positions[partition]:
                    raise Violation(f"{offset} of {partition} follows {self._positions[partition] - 1}")
                if self._history.read.setdefault((partition, offset), value) != value:
                    raise Violation(f"two records are at {offset} of {partition}")
                self._positions[partition] = offset + 1
                moved = True
        if moved:
            self._commit()
        else:
            self._soon()

    def _commit(self) -> None:
        positions = dict(self._positions)
        rows = [
            SimpleNamespace(partition_index=partition, committed_offset=offset, committed_metadata="")
            for partition, offset in positions.items()
        ]
        self._ask_next(
            codec.OFFSET_COMMIT,
            7,
            partial(self._committed, positions),
            group_id=GROUP,
            member_id=self._member,
            generation_id_or_member_epoch=self._generation,
            topics=[SimpleNamespace(name=TOPIC, partitions=rows)],
        )

    def _committed(self, positions: dict[int, int], values: Any) -> None:
        codes = [row["error_code"] for row in values["topics"][0]["partitions"]]
        code = next(filter(None, codes), 0)
        if code:
            self._rejoin(code)
            return
        self._history.count("committed")
        for partition, offset in positions.items():
            known = self._history.committed
            known[partition] = max(known.get(partition, 0), offset)
        self._soon()


def records_in(data: bytes) -> list[tuple[int, bytes]]:
    """Offsets and values of what `made_batch` has made, in batches one behind the other."""
    found, position = [], 0
    while position < len(data):
        base, size = (
            int.from_bytes(data[position : position + 8], "big"),
            int.from_bytes(data[position + 8 : position + 12], "big"),
        )
        at = position + 61
        for delta in range(int.from_bytes(data[position + 57 : position + 61], "big")):
            length = data[at] >> 1
            # Attributes, two deltas, no key, and the value's length, a byte each.
            found.append((base + delta, data[at + 6 : at + length]))
            at += 1 + length
        position += 12 + size
    return found
