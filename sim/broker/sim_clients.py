"""Producers and consumers in virtual time. What they were told is what the brokers are held to."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.broker.message import Message, PutResult, encode_records
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import PutOutcome
from quorumlog.errors import LedgerError
from sim.broker.sim_brokers import SimBrokers

PAUSE_MS = 10.0
LATENCY_MS = (0.05, 2.0)
MOST_MESSAGES = 4


class Acknowledged(NamedTuple):
    queue: QueueKey
    offset: int
    position: int
    body: bytes


class SimProducer:
    """Sends to whoever is master, waits for the answer, and never repeats what may be stored."""

    def __init__(self, brokers: SimBrokers, name: str, topics: dict[str, int]) -> None:
        self._brokers = brokers
        self._name = name
        self._queues = [QueueKey(topic, n) for topic, count in topics.items() for n in range(count)]
        self._random = brokers.cluster.stream(f"producer {name}")
        self._number = 0
        self.acknowledged: list[Acknowledged] = []
        self.works = False

    def begin(self) -> None:
        self.works = True
        self.work()

    def work(self) -> None:
        cluster = self._brokers.cluster
        if not self.works:
            return
        if any(member.is_up for member in cluster.members):
            member = self._random.choice([each for each in cluster.members if each.is_up])
            cluster.at(self._random.uniform(*LATENCY_MS), lambda: self._arrive(member.member_id))
        cluster.at(self._random.uniform(0, 2 * PAUSE_MS), self.work)

    def _arrive(self, member_id: str) -> None:
        (member,) = [m for m in self._brokers.cluster.members if m.member_id == member_id]
        broker = self._brokers.brokers.get(member_id)
        if broker is None or not member.is_up:
            return
        if member.is_paused:
            member.later(0.0, lambda: self._arrive(member_id))
            return
        queue = self._random.choice(self._queues)
        count = self._random.randint(1, MOST_MESSAGES)
        bodies = []
        for _ in range(count):
            self._number += 1
            bodies.append(b"%s:%d" % (self._name.encode(), self._number))
        messages = [Message(queue.topic, body, keys=[body.decode()]) for body in bodies]
        records = RecordBatch.contiguous(*encode_records(messages, queue.queue_id, 0))

        def told(outcome: PutOutcome) -> None:
            if isinstance(outcome, PutResult):
                assert outcome.positions is not None
                for place, body in enumerate(bodies):
                    offset, position = outcome.queue_offset + place, int(outcome.positions[place])
                    self.acknowledged.append(Acknowledged(queue, offset, position, body))
                self._brokers.cluster.trace.count("broker: acknowledged")

        broker.puts.add(records, True, told)


class SimConsumer:
    """Pulls from any member, and notes what lies where."""

    def __init__(self, brokers: SimBrokers, name: str, topics: dict[str, int]) -> None:
        self._brokers = brokers
        self._queues = [QueueKey(topic, n) for topic, count in topics.items() for n in range(count)]
        self._random = brokers.cluster.stream(f"consumer {name}")
        self.seen: dict[tuple[QueueKey, int], bytes] = {}
        self.contradiction = ""
        self.works = False

    def begin(self) -> None:
        self.works = True
        self.work()

    def work(self) -> None:
        cluster = self._brokers.cluster
        if not self.works:
            return
        ready = [m for m in cluster.members if m.is_up and not m.is_paused]
        if ready:
            self._look(self._random.choice(ready).member_id)
        cluster.at(self._random.uniform(0, 10 * PAUSE_MS), self.work)

    def _look(self, member_id: str) -> None:
        broker = self._brokers.brokers.get(member_id)
        queue = self._random.choice(self._queues)
        if broker is None:
            return
        try:
            pulled = broker.reader.pull(queue, 0, 10_000)
        except LedgerError:
            return
        for message in pulled.records.messages():
            known = self.seen.setdefault((queue, message.queue_offset), message.body)
            if known != message.body:
                self.contradiction = f"{queue} {message.queue_offset}: {known!r}, then {message.body!r}"
        if pulled.max_offset:
            self._brokers.cluster.trace.count("broker: pulled")
