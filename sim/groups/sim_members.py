"""Who sends, reads and asks in a simulated run, and what they were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumlog.batch import EntryBatch
from quorumlog.broker.client.broker_calls import pulled_of
from quorumlog.broker.group_commands import (
    REAL_QUEUE,
    REAL_TOPIC,
    GroupRow,
    GroupsQuestion,
    encode,
    read_answer,
)
from quorumlog.broker.message import DELAY, SCHEDULE_TOPIC, Message
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    AssignmentResponse,
    CommitRequest,
    GroupAnswer,
    GroupHeartbeatRequest,
    GroupQuestionRequest,
    OpenSessionRequest,
    OpenSessionResponse,
    PullRequest,
    SendRequest,
    SessionSendRequest,
)
from quorumlog.errors import LedgerError, Refused
from quorumlog.log_state.control_entries import TOKEN_BYTES
from quorumlog.net.frame import Frame
from quorumlog.net.rpc.calls import Call
from quorumlog.testing.promises import Violation
from sim.broker.sim_clients import SimBrokerClient, records_of
from sim.groups.sim_groups import QUEUES, TOPIC, SimGroupBrokers

GROUP = "billing"
PAUSE_MS = 8.0
WORK_MS = 200.0
Queue = tuple[str, int]


@dataclass(slots=True)
class GroupHistory:
    """What any client knows; the brokers are held to it."""

    sent: set[bytes] = field(default_factory=set)
    """Acknowledged, delayed ones included."""
    refused: set[bytes] = field(default_factory=set)
    """Certainly not stored."""
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
    most_pending = 1
    """At a time."""

    def __init__(self, brokers: SimGroupBrokers, name: str, history: GroupHistory) -> None:
        self.cluster = brokers.cluster
        self.client = SimBrokerClient(brokers, name)
        self.name = name
        self.history = history
        self.random = brokers.cluster.stream(f"groups {name}")
        self.works = False
        self._pending = 0

    def begin(self) -> None:
        self.works = True
        self._next()

    def _next(self) -> None:
        if self.works:
            if self._pending < self.most_pending:
                self.client.break_sometimes()
                self.work()
            self.cluster.at(self.random.uniform(0, 2 * PAUSE_MS), self._next)

    def work(self) -> None:
        raise NotImplementedError

    def ask(
        self,
        message: AnyBrokerMessage,
        on_response: Callable[[Any], None],
        batch: EntryBatch | None = None,
        *,
        wait_ms: int = 0,
    ) -> Call:
        """`on_response` gets the response, or a LedgerError."""
        self._pending += 1

        def settle(outcome: Frame | LedgerError) -> None:
            self._pending -= 1
            on_response(outcome)

        return self.client.ask(message, settle, batch, wait_ms=wait_ms)


class SimSender(_Client):
    """Sends plain and delayed messages, and repeats none."""

    most_pending = 4

    def __init__(self, brokers: SimGroupBrokers, name: str, history: GroupHistory) -> None:
        super().__init__(brokers, name, history)
        self._number = 0

    def _body(self) -> bytes:
        self._number += 1
        return f"{self.name}:{self._number}".encode()

    def work(self) -> None:
        body, queue = self._body(), self.random.randrange(QUEUES)
        if self.random.random() < 0.4:
            level = self.random.choice((1, 2))
            properties = {DELAY: str(level), REAL_TOPIC: TOPIC, REAL_QUEUE: str(queue)}
            message, queue = Message(SCHEDULE_TOPIC, body, properties=properties), level - 1
            self.history.delayed.add(body)
        else:
            message = Message(TOPIC, body)

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, Frame):
                self.history.sent.add(body)
                self.cluster.trace.count("groups: sent")
            elif isinstance(outcome, Refused):
                self.history.refused.add(body)

        self.ask(SendRequest(), on_response, records_of([message], queue))


class SimSessionSender(SimSender):
    """Sends in a session of its own: what it sends is stored once, whatever becomes of connections."""

    most_pending = 1

    def __init__(self, brokers: SimGroupBrokers, name: str, history: GroupHistory) -> None:
        super().__init__(brokers, name, history)
        self._epoch: tuple[int, int] | None = None
        self._ends: tuple[int, int] | None = None
        self._token = b""
        """Of the session that is to be opened; empty: one is open."""
        self._sequence = 0
        self._unknown: tuple[int, bytes] | None = None
        """What nobody knows of: its number, and itself."""
        self._open_anew()

    def _open_anew(self) -> None:
        self._token = self.random.randbytes(TOKEN_BYTES)
        self._ends = self._epoch

    def work(self) -> None:
        self._open() if self._token else self._send()

    def _open(self) -> None:
        request = OpenSessionRequest(producer=self.name, token=self._token, ends=self._ends)

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, LedgerError):
                return
            answer = outcome.message
            assert isinstance(answer, OpenSessionResponse), answer
            if not answer.opened:
                if self._epoch is not None:
                    raise Violation(f"{self.name} is fenced, and nobody else has its name")
                self._ends = answer.epoch
                return
            self._epoch, self._token = answer.epoch, b""
            self._sequence = answer.last_sequence + 1
            if self._unknown is not None:
                number, body = self._unknown
                (self.history.sent if number <= answer.last_sequence else self.history.refused).add(body)
                self._unknown = None

        self.ask(request, on_response)

    def _send(self) -> None:
        assert self._epoch is not None
        body, number = self._body(), self._sequence
        request = SessionSendRequest(producer=self.name, epoch=self._epoch, sequence=number)

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, Frame):
                self._sequence += 1
                self.history.sent.add(body)
                self.cluster.trace.count("groups: sent in a session")
            elif isinstance(outcome, Refused):
                self.history.refused.add(body)
            elif self.cluster.now_ms < call.deadline_ms:
                raise Violation(f"{body!r} is numbered, and was given up before its time: {outcome}")
            else:
                self._unknown = number, body
                self._open_anew()
                self.cluster.trace.count("groups: unknown in a session")

        records = records_of([Message(TOPIC, body)], self.random.randrange(QUEUES))
        call = self.ask(request, on_response, records)


class SimReader(_Client):
    """A member of the group. Now and then it is killed, and another one comes; now and then it commits
    what it read in a generation that is over. An orderly one takes its time with what it reads, and
    gives a queue that it is asked for up once it has done so."""

    def __init__(
        self, brokers: SimGroupBrokers, name: str, history: GroupHistory, *, is_orderly: bool = False
    ) -> None:
        super().__init__(brokers, name, history)
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
        for queue in [queue for queue, reader in self.history.working.items() if reader is self]:
            del self.history.working[queue]

    def work(self) -> None:
        chance = self.random.random()
        for queue in sorted(self._asked_for):
            if self.history.working.get(queue) is not self:
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
        request = GroupHeartbeatRequest(
            group=GROUP,
            member=self._member,
            topics=[(TOPIC, "*")],
            generation=generation,
            is_orderly=self._is_orderly,
            asked_for=tuple(sorted(self._asked_for)),
            gives_up=tuple(sorted(self._given_up)),
            wait_ms=self.random.choice((0, 0, 200)),
        )

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, LedgerError) or self._life != life:
                return
            answer = outcome.message
            assert isinstance(answer, AssignmentResponse), answer
            if self._generation != generation:
                return  # a later answer has come before
            self._session_until_ms = max(self._session_until_ms, said_ms + answer.session_ms)
            if answer.generation > self._generation:
                self._given_up.clear()
                self._generation = answer.generation
                self.history.generation = max(self.history.generation, answer.generation)
                kept = self._positions
                self._positions = {
                    (topic, queue_id): kept.get((topic, queue_id), max(offset, 0))
                    for topic, queue_id, offset in answer.queues
                }
                self.cluster.trace.count("groups: assigned")
            self._asked_for = set(answer.asked_for) & self._positions.keys()

        self.ask(request, on_response, wait_ms=request.wait_ms)

    @property
    def is_heard_of(self) -> bool:
        """As long as nobody may take its queues away."""
        return self.cluster.now_ms < self._session_until_ms

    def _pull_in_order(self) -> None:
        """And work on it for a while."""
        life, free = self._life, [queue for queue in self._positions if queue not in self._asked_for]
        free = [queue for queue in sorted(free) if self.history.working.get(queue) is not self]
        if not free or not self.is_heard_of:
            return
        queue = self.random.choice(free)
        other = self.history.working.get(queue)
        if other is not None and other.is_heard_of:
            raise Violation(f"{self._member} begins with {queue}, on which {other._member} works")
        self.history.working[queue] = self

        def finish() -> None:
            if self._life == life and self.history.working.get(queue) is self:
                self.cluster.trace.count("groups: worked in order")
                del self.history.working[queue]

        self._pull([queue])
        self.cluster.at(self.random.uniform(0, WORK_MS), finish)

    def _pull(self, only: Sequence[Queue] | None = None) -> None:
        life = self._life
        for queue, position in list(self._positions.items()) if only is None else []:
            self._pull_one(queue, position, life, 5)
        for queue in only or ():
            self._pull_one(queue, self._positions[queue], life, 50)

    def _pull_one(self, queue: Queue, position: int, life: int, most_messages: int) -> None:
        topic, queue_id = queue

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, LedgerError) or life != self._life:
                return
            pulled = pulled_of(outcome)
            for message in pulled.messages:
                self.history.seen[message.body] += 1
            if self._positions.get(queue) == position:
                self._positions[queue] = pulled.next_offset

        request = PullRequest(
            topic=topic, queue_id=queue_id, offset=position, most_messages=most_messages
        )
        self.ask(request, on_response)

    def _commit(self) -> None:
        generation, known = self._generation, self.history.generation
        if self.random.random() < 0.2:
            generation -= 1
        offsets = [(*queue, at) for queue, at in self._positions.items()]
        if self.random.random() < 0.2:
            offsets = [(*queue, self.random.randint(0, at)) for queue, at in self._positions.items()]
        request = CommitRequest(group=GROUP, member=self._member, generation=generation, offsets=offsets)

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, LedgerError):
                return
            if generation < known:
                raise Violation(f"a commit of generation {generation} was taken when {known} had begun")
            self.cluster.trace.count("groups: committed")
            for topic, queue_id, offset in offsets:
                before = self.history.committed.get((topic, queue_id), 0)
                self.history.committed[topic, queue_id] = max(before, offset)

        self.ask(request, on_response)


class SimAsker(_Client):
    """Asks how far the group is: never less than anybody was told before."""

    def work(self) -> None:
        before = dict(self.history.committed)
        request = GroupQuestionRequest(body=encode(GroupsQuestion(GROUP)))

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, LedgerError):
                return
            answer = outcome.message
            assert isinstance(answer, GroupAnswer), answer
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
            self.history.generation = max(self.history.generation, row.generation)
            self.cluster.trace.count("groups: asked")

        self.cluster.operations.reads += 1  # a question is a round of heartbeats
        self.ask(request, on_response)
