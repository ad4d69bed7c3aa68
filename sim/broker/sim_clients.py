"""Producers and consumers in virtual time. What they were told is what the brokers are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.client.broker_calls import BrokerProduct, call_of, pulled_of
from quorumlog.broker.message import Message, encode_records
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.wire import GROUP, AnyBrokerMessage, PullRequest, SendRequest, SendResponse
from quorumlog.errors import LedgerError, Refused
from quorumlog.net.frame import AnyFrameMessage, Frame
from quorumlog.net.rpc.calls import LEADER, Call, RequestTarget
from sim.broker.sim_brokers import SimBrokers
from sim.clients import SimCalls, asked_alone

PAUSE_MS = 20.0
TIMEOUTS_MS = (300.0, 1_000.0, 3_000.0)
MOST_MESSAGES = 4
ALONE = 0.3
"""How often one broker is asked, whatever it is."""
ResponseCallback = Callable[[Any], None]
"""Gets the answer's frame, or a LedgerError."""


def records_of(messages: Sequence[Message], queue_id: int) -> EntryBatch:
    buffer, sizes = encode_records(messages, queue_id, 0)
    return EntryBatch(buffer, np.array(sizes))


class SimBrokerClient(SimCalls):
    def __init__(self, brokers: SimBrokers, name: str) -> None:
        super().__init__(brokers, BrokerProduct(), brokers.cluster.stream(f"client {name}"))

    def ask(
        self,
        message: AnyBrokerMessage,
        on_response: ResponseCallback,
        batch: EntryBatch | None = None,
        *,
        target: RequestTarget = LEADER,
        wait_ms: int = 0,
        timeout_ms: float | None = None,
    ) -> Call:
        """`timeout_ms`: None: any."""
        timeout_ms = timeout_ms or self._random.choice(TIMEOUTS_MS)
        call = call_of(message, target, self._cluster.now_ms, timeout_ms, batch=batch, wait_ms=wait_ms)

        def done(call: Call) -> None:
            if call.error is not None:
                on_response(call.error)
            else:
                on_response(Frame(GROUP, cast(AnyFrameMessage, call.response), call.response_batch))

        call.context = done
        self.submit(call)
        return call


class Acknowledged(NamedTuple):
    queue: QueueKey
    offset: int
    position: int
    body: bytes


class _Worker:
    def __init__(self, brokers: SimBrokers, name: str, topics: dict[str, int]) -> None:
        self._cluster = brokers.cluster
        self._client = SimBrokerClient(brokers, name)
        self._name = name
        self._queues = [QueueKey(topic, n) for topic, count in topics.items() for n in range(count)]
        self._random = brokers.cluster.stream(f"worker {name}")
        self.works = False

    def begin(self) -> None:
        self.works = True
        self.work()

    def work(self) -> None:
        if self.works:
            self._client.break_sometimes()
            self._ask()
            self._cluster.at(self._random.uniform(0, 2 * self.pause_ms), self.work)

    def _ask(self) -> None:
        raise NotImplementedError

    pause_ms = PAUSE_MS

    def _anybody(self) -> RequestTarget:
        if self._random.random() < ALONE:
            return asked_alone(self._random.choice(self._cluster.members).member_id)
        return LEADER


class SimProducer(_Worker):
    """Sends without waiting for answers, and never repeats what may be stored."""

    def __init__(self, brokers: SimBrokers, name: str, topics: dict[str, int]) -> None:
        super().__init__(brokers, name, topics)
        self._number = 0
        self.acknowledged: list[Acknowledged] = []
        self.refused: set[bytes] = set()

    def _ask(self) -> None:
        queue = self._random.choice(self._queues)
        bodies = []
        for _ in range(self._random.randint(1, MOST_MESSAGES)):
            self._number += 1
            bodies.append(b"%s:%d" % (self._name.encode(), self._number))
        messages = [Message(queue.topic, body, keys=[body.decode()]) for body in bodies]

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, Refused):
                self.refused.update(bodies)
            elif isinstance(outcome, Frame):
                stored = outcome.message
                assert isinstance(stored, SendResponse), stored
                positions = np.frombuffer(stored.positions, ">i8").tolist()
                for place, (body, position) in enumerate(zip(bodies, positions, strict=True)):
                    self.acknowledged.append(
                        Acknowledged(queue, stored.queue_offset + place, position, body)
                    )
                self._cluster.trace.count("broker: acknowledged")

        batch = records_of(messages, queue.queue_id)
        self._client.ask(SendRequest(), on_response, batch, target=self._anybody())


class SimConsumer(_Worker):
    """Pulls from any member, and notes what lies where."""

    pause_ms = 2.5 * PAUSE_MS

    def __init__(self, brokers: SimBrokers, name: str, topics: dict[str, int]) -> None:
        super().__init__(brokers, name, topics)
        self.seen: dict[tuple[QueueKey, int], bytes] = {}
        self._ends: dict[QueueKey, int] = {}
        self.contradiction = ""

    def _ask(self) -> None:
        queue = self._random.choice(self._queues)
        request = PullRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=self._random.choice((0, self._ends.get(queue, 0))),
            most_messages=10_000,
            wait_ms=self._random.choice((0, 200)),
        )

        def on_response(outcome: Frame | LedgerError) -> None:
            if isinstance(outcome, LedgerError):
                return
            pulled = pulled_of(outcome)
            for message in pulled.messages:
                known = self.seen.setdefault((queue, message.queue_offset), message.body)
                if known != message.body:
                    at = f"{queue} {message.queue_offset}"
                    self.contradiction = f"{at}: {known!r}, then {message.body!r}"
            if pulled.max_offset:
                self._ends[queue] = pulled.next_offset
                self._cluster.trace.count("broker: pulled")

        self._client.ask(request, on_response, target=self._anybody(), wait_ms=request.wait_ms)
