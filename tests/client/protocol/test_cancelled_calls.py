"""Calls that are cancelled, and clients that are closed, at each step of a call: in virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import Request, Stream
from quorumlog.errors import (
    BadRequest,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    ProducerFenced,
    SequenceGap,
)
from quorumlog.log_state.control_entries import LEVEL, ProducerEpoch
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER, CallState, Link, RequestTarget, TargetKind
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    AppendRequest,
    AppendResponse,
    ConnectProducer,
    ConnectProducerResponse,
    LastSequence,
    LastSequenceResponse,
    ProducerInfo,
    ReadRequest,
    ReadResponse,
    StatusRequest,
)
from tests.client.protocol.test_client_protocol import ADDRESSES, Host, Wire, check, run


class Calls(Host):
    """Reads and questions beside the appends, a producer whose appends stand in the log once; any of
    them may be cancelled."""

    def __init__(self, seed: int, producer: str | None = None) -> None:
        super().__init__(seed, producer)
        self.producer = producer
        self.asked: list[Request] = []
        """What changes nothing."""
        self.cancelled: list[tuple[Request, CallState, bool]] = []
        """With the state that it had, and whether it may have been carried out by then."""
        self.epoch: ProducerEpoch | None = None
        self.token = b""
        self.places: dict[int, int] = {}
        """Index by number, of the producer."""

    def submit(self, stream: Stream | None = None) -> Request:
        if self.producer is None:
            return super().submit(stream)
        body = b"0/%d" % len(self.sent)
        request = self.made(AppendRequest(), LEADER, EntryBatch.from_bodies([body]))
        request.in_session = True
        self.sent.append(request)
        self.enter(request)
        return request

    def ask(self, message: AnyClientMessage, target: RequestTarget) -> Request:
        request = self.made(message, target)
        self.asked.append(request)
        self.enter(request)
        return request

    def made(
        self, message: AnyClientMessage, target: RequestTarget, batch: EntryBatch | None = None
    ) -> Request:
        return Request(message, target, submitted_ms=self.now, deadline_ms=self.now + 5000, batch=batch)

    def enter(self, request: Request) -> None:
        self.protocol.submit(request, self.now)
        self.carry_out()

    def cancel(self, request: Request) -> None:
        self.cancelled.append((request, request.state, request.may_be_done))
        self.protocol.cancel(request, self.now)
        self.carry_out()

    # ---------------------------------------------------------------- the servers' side

    def serve(self, link: Link, wire: Wire, frame: Frame) -> None:
        message, number = frame.message, ADDRESSES.index(link.address)
        answer: ClientMessage
        if isinstance(message, Hello):
            answer = HelloResponse(member_id=f"n{number}", connection_id=wire.connection_id, level=LEVEL)
        elif isinstance(message, ReadRequest):
            answer = ReadResponse(
                request_id=message.request_id,
                ledger_begin_index=0,
                committed_index=len(self.log) - 1,
                first_index=message.first_index,
                count=0,
            )
        elif isinstance(message, ConnectProducer | LastSequence) and number != self.leader:
            answer = error_response(message.request_id, NotLeader("not me"))
        elif isinstance(message, ConnectProducer):
            if self.epoch is None or message.ends == self.epoch:
                self.epoch, self.token = (
                    ProducerEpoch(len(self.log), self.random.randrange(10**9)),
                    message.token,
                )
            answer = ConnectProducerResponse(
                request_id=message.request_id,
                opened=message.token == self.token,
                epoch=self.epoch,
                last_sequence=max(self.places, default=-1),
            )
        elif isinstance(message, LastSequence):
            assert self.epoch is not None
            last = max(self.places, default=-1)
            known = ProducerInfo(producer="p", epoch=self.epoch, last_sequence=last, last_index=-1)
            answer = LastSequenceResponse(request_id=message.request_id, producer=known)
        else:
            super().serve(link, wire, frame)
            return
        wire.to_client.append(Frame("g", answer, None))  # type: ignore[arg-type]

    def append(
        self, wire: Wire, message: AppendRequest, batch: EntryBatch, number: int
    ) -> ClientMessage:
        session = message.session
        if session is None or number != self.leader:
            return super().append(wire, message, batch, number)
        next_sequence = max(self.places, default=-1) + 1
        error: LedgerError | None = None
        if session.epoch != self.epoch:
            error = ProducerFenced("another epoch")
        elif session.sequence > next_sequence:
            error = SequenceGap("a gap", expected_sequence=next_sequence)
        if error is not None:
            return error_response(message.request_id, error)
        if session.sequence == next_sequence:
            answer = super().append(wire, message, batch, number)
            if self.log and self.log[-1] == bytes(batch.body(0)):
                self.places[next_sequence] = len(self.log) - 1
            return answer
        return AppendResponse(
            request_id=message.request_id,
            term=self.term,
            first_index=self.places[session.sequence],
            count=1,
            durability="sync",
        )

    # ---------------------------------------------------------------- chance

    def step(self) -> None:
        chance = self.random.random()
        open_calls = [each for each in (*self.sent, *self.asked) if not each.is_done]
        if chance < 0.06 and open_calls:
            self.cancel(self.random.choice(open_calls))
        elif chance < 0.14:
            message = self.random.choice([ReadRequest(first_index=0), StatusRequest()])
            address = RequestTarget(TargetKind.ADDRESS, self.random.choice(ADDRESSES))
            self.ask(message, self.random.choice([LEADER, ANY_MEMBER, address]))
        elif chance < 0.17 and self.producer is not None:
            question = self.made(LastSequence(producer=self.producer), LEADER)
            question.in_session = True
            self.asked.append(question)
            self.enter(question)
        else:
            super().step()

    def settle(self) -> None:
        self.faults = False
        began = self.now
        while not all(each.is_done for each in (*self.sent, *self.asked)):
            run(self, 10.0)
            assert self.now - began < 4000, "the client does not come to rest"

    def check(self) -> None:
        assert len(self.done) == len({*self.done}) == len(self.sent) + len(self.asked)
        self.done = [each for each in self.done if each in {*self.sent}]
        check(self)
        for link in self.wires:
            assert all(call.state is CallState.SENT for call in link.pending.values())
        for request, state, may_be_done in self.cancelled:
            if state is CallState.SENT and request.changes:
                continue  # it goes on
            kind = OutcomeUnknown if may_be_done else BadRequest
            assert isinstance(request.error, kind), (request.error, state)


PRODUCERS = pytest.mark.parametrize("producer", [None, "p"])


@PRODUCERS
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_cancelled_harms_no_other_call(seed: int, producer: str | None) -> None:
    host = Calls(seed, producer)
    for _ in range(400):
        host.step()
    host.settle()
    host.check()


@PRODUCERS
@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_is_closed_at_any_moment_leaves_no_call_without_its_outcome(
    seed: int, producer: str | None
) -> None:
    host = Calls(1000 + seed, producer)
    for _ in range(host.random.randrange(200)):
        host.step()
    host.protocol.close(host.now)
    host.carry_out()
    assert all(each.is_done for each in (*host.sent, *host.asked))
    assert host.protocol.next_wakeup_ms() == float("inf")
    assert isinstance(host.submit().error, BadRequest)
    host.check()


@pytest.mark.parametrize(
    "told",
    [{"results": (b"1", b"2")}, {"ranges": ((0, 1, 1), (5, 1, 1))}, {"failures": ((1, "no"),)}],
)
def test_an_answer_that_does_not_fit_its_append_decides_nothing(told: dict[str, Any]) -> None:
    """Whoever waits for one of several that were joined was never told."""
    host = Calls(1)
    right = host.append
    host.append = lambda *said: msgspec.structs.replace(right(*said), **told)  # type: ignore
    request = host.submit()
    run(host, 300)
    assert isinstance(request.error, OutcomeUnknown)
