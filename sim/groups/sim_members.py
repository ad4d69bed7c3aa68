"""Who sends, reads and asks in a simulated run, and what they were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.group_commands import (
    REAL_QUEUE,
    REAL_TOPIC,
    GroupRow,
    GroupsQuestion,
    encode,
    read_answer,
)
from quorumlog.broker.message import DELAY, SCHEDULE_TOPIC, Message, PutResult, encode_records
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.wire import (
    AssignmentResponse,
    CommitRequest,
    DoneResponse,
    GroupAnswer,
    GroupQuestionRequest,
    HeartbeatRequest,
)
from quorumlog.errors import LedgerError
from quorumlog.testing.promises import Violation
from sim.groups.sim_groups import QUEUES, TOPIC, SimGroupBrokers

GROUP = "billing"
PAUSE_MS = 8.0
PATIENCE_MS = 800.0
WORK_MS = 200.0
Queue = tuple[str, int]


@dataclass(slots=True)
class Told:
    """What any client knows; the brokers are held to it."""

    sent: set[bytes] = field(default_factory=set)
    """Acknowledged, delayed ones included."""
    delayed: set[bytes] = field(default_factory=set)
    """Sent with a delay, acknowledged or not."""
    seen: Counter[bytes] = field(default_factory=Counter)
    """By the group."""
    committed: dict[Queue, int] = field(default_factory=dict)
    """The highest offset of each queue whose commit was acknowledged."""
    generation: int = -1
    """The highest that somebody was told."""
    working: dict[Queue, SimReader] = field(default_factory=dict)
    """Who works on a queue just now, of those that hold what they work on."""


class _Client:
    def __init__(self, brokers: SimGroupBrokers, name: str, told: Told) -> None:
        self.brokers = brokers
        self.cluster = brokers.cluster
        self.name = name
        self.told = told
        self.random = brokers.cluster.stream(f"groups {name}")
        self.target = ""
        self.works = False
        self._waits_until_ms = 0.0

    def begin(self) -> None:
        self.works = True
        self._next()

    def _next(self) -> None:
        if self.works:
            if self.cluster.now_ms >= self._waits_until_ms:
                if not self.target or self.random.random() < 0.02:
                    self.target = self.random.choice(self.cluster.members).member_id
                self.work()
            self.cluster.at(self.random.uniform(0, 2 * PAUSE_MS), self._next)

    def work(self) -> None:
        raise NotImplementedError

    def waits(self) -> None:
        """Until it hears something, but not for ever."""
        self._waits_until_ms = self.cluster.now_ms + PATIENCE_MS

    def heard(self, answer: object) -> None:
        self._waits_until_ms = 0.0
        if isinstance(answer, LedgerError):
            self.target = ""


class SimSender(_Client):
    """Sends plain and delayed messages, and repeats none."""

    def __init__(self, brokers: SimGroupBrokers, name: str, told: Told) -> None:
        super().__init__(brokers, name, told)
        self._number = 0

    def work(self) -> None:
        self._number += 1
        body = f"{self.name}:{self._number}".encode()
        queue = self.random.randrange(QUEUES)
        if self.random.random() < 0.4:
            level = self.random.choice((1, 2))
            properties = {DELAY: str(level), REAL_TOPIC: TOPIC, REAL_QUEUE: str(queue)}
            message, queue = Message(SCHEDULE_TOPIC, body, properties=properties), level - 1
            self.told.delayed.add(body)
        else:
            message = Message(TOPIC, body)
        records = RecordBatch.contiguous(*encode_records([message], queue, 0))

        def told(outcome: object) -> None:
            if isinstance(outcome, PutResult):
                self.told.sent.add(body)
                self.cluster.trace.count("groups: sent")
            self.heard(outcome)

        self.waits()
        self.brokers.reach(self.target, self.random, lambda broker: broker.puts.add(records, True, told))


class SimReader(_Client):
    """A member of the group. Now and then it is killed, and another one comes; now and then it commits
    what it read in a generation that is over. An orderly one takes its time with what it reads, and
    gives a queue that it is asked for up once it has done so."""

    def __init__(
        self, brokers: SimGroupBrokers, name: str, told: Told, *, is_orderly: bool = False
    ) -> None:
        super().__init__(brokers, name, told)
        self._is_orderly = is_orderly
        self._life = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._life += 1
        self._generation = -1
        self._positions: dict[Queue, int] = {}
        self._session_until_ms = 0.0
        self._asked_for: set[Queue] = set()
        self._given_up: set[Queue] = set()
        for queue in [queue for queue, reader in self.told.working.items() if reader is self]:
            del self.told.working[queue]

    def work(self) -> None:
        chance = self.random.random()
        for queue in sorted(self._asked_for):
            if self.told.working.get(queue) is not self:
                self._asked_for.discard(queue)
                self._given_up.add(queue)
                self._positions.pop(queue, None)
        if chance < 0.005:
            self._begin_anew()
        elif chance < 0.3:
            self._beat()
        elif chance < 0.8:
            self._pull_in_order() if self._is_orderly else self._pull()
        elif self._positions:
            self._commit()

    @property
    def _member(self) -> str:
        return f"{self.name}-{self._life}"

    def _beat(self) -> None:
        life, generation, said_ms = self._life, self._generation, self.cluster.now_ms
        request = HeartbeatRequest(
            group=GROUP,
            member=self._member,
            topics=[(TOPIC, "*")],
            generation=generation,
            is_orderly=self._is_orderly,
            asked_for=tuple(sorted(self._asked_for)),
            gives_up=tuple(sorted(self._given_up)),
        )

        def told(answer: Any) -> None:
            self.heard(answer)
            if not isinstance(answer, AssignmentResponse) or self._life != life:
                return
            if self._generation != generation:
                return  # a later answer has come before
            self._session_until_ms = max(self._session_until_ms, said_ms + answer.session_ms)
            if answer.generation > self._generation:
                self._given_up.clear()
                self._generation = answer.generation
                self.told.generation = max(self.told.generation, answer.generation)
                kept = self._positions
                self._positions = {
                    (topic, queue_id): kept.get((topic, queue_id), max(offset, 0))
                    for topic, queue_id, offset in answer.queues
                }
                self.cluster.trace.count("groups: assigned")
            self._asked_for = set(answer.asked_for) & self._positions.keys()

        self.waits()
        self.brokers.ask(self.target, self.random, request, told)

    @property
    def is_heard_of(self) -> bool:
        """As long as nobody may take its queues away."""
        return self.cluster.now_ms < self._session_until_ms

    def _pull_in_order(self) -> None:
        """And work on it for a while."""
        life, free = self._life, [queue for queue in self._positions if queue not in self._asked_for]
        free = [queue for queue in sorted(free) if self.told.working.get(queue) is not self]
        if not free or not self.is_heard_of:
            return
        queue = self.random.choice(free)
        other = self.told.working.get(queue)
        if other is not None and other.is_heard_of:
            raise Violation(f"{self._member} begins with {queue}, on which {other._member} works")
        self.told.working[queue] = self

        def finish() -> None:
            if self._life == life and self.told.working.get(queue) is self:
                self.cluster.trace.count("groups: worked in order")
                del self.told.working[queue]

        self._pull([queue])
        self.cluster.at(self.random.uniform(0, WORK_MS), finish)

    def _pull(self, only: Sequence[Queue] | None = None) -> None:
        life = self._life

        def look(broker: DLedgerBroker) -> None:
            for queue, position in list(self._positions.items()):
                if only is not None and queue not in only:
                    continue
                if life != self._life:
                    return
                try:
                    pulled = broker.reader.pull(QueueKey(*queue), position, 5 if only is None else 50)
                except LedgerError:
                    continue
                for message in pulled.records.messages():
                    self.told.seen[message.body] += 1
                if queue in self._positions:
                    self._positions[queue] = pulled.next_offset

        self.brokers.reach(self.target, self.random, look)

    def _commit(self) -> None:
        generation, known = self._generation, self.told.generation
        if self.random.random() < 0.2:
            generation -= 1
        offsets = [(*queue, at) for queue, at in self._positions.items()]
        if self.random.random() < 0.2:
            offsets = [(*queue, self.random.randint(0, at)) for queue, at in self._positions.items()]
        request = CommitRequest(group=GROUP, member=self._member, generation=generation, offsets=offsets)

        def told(answer: Any) -> None:
            self.heard(answer)
            if not isinstance(answer, DoneResponse):
                return
            if generation < known:
                raise Violation(f"a commit of generation {generation} was taken when {known} had begun")
            self.cluster.trace.count("groups: committed")
            for topic, queue_id, offset in offsets:
                before = self.told.committed.get((topic, queue_id), 0)
                self.told.committed[topic, queue_id] = max(before, offset)

        self.waits()
        self.brokers.ask(self.target, self.random, request, told)


class SimAsker(_Client):
    """Asks how far the group is: never less than anybody was told before."""

    def work(self) -> None:
        before = dict(self.told.committed)
        request = GroupQuestionRequest(body=encode(GroupsQuestion(GROUP)))

        def told(answer: Any) -> None:
            self.heard(answer)
            if not isinstance(answer, GroupAnswer):
                return
            try:
                (row,) = read_answer(answer.body, list[GroupRow])
            except LedgerError:
                return  # the group is not there yet
            at = {(topic, queue_id): offset for topic, queue_id, offset in row.offsets}
            for queue, offset in before.items():
                if at.get(queue, -1) < offset:
                    raise Violation(
                        f"{queue} stands at {at.get(queue)}, where {offset} was committed before"
                    )
            self.told.generation = max(self.told.generation, row.generation)
            self.cluster.trace.count("groups: asked")

        self.cluster.operations.reads += 1  # a question is a round of heartbeats
        self.waits()
        self.brokers.ask(self.target, self.random, request, told)
