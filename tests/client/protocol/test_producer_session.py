"""A producer's session in virtual time, against a model leader that answers as the test wants."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.appending import AppendWindow, BatchGatherer
from quorumlog.client.protocol.client_requests import Request
from quorumlog.errors import (
    AlreadyCommitted,
    LeaderNotReady,
    OutcomeUnknown,
    Overloaded,
    SequenceGap,
)
from quorumlog.log_state.control_entries import LEVEL, ProducerEpoch
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.rpc.calls import LEADER, CallState, Link
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    ConnectProducer,
    ConnectProducerResponse,
    LastSequence,
    StatusRequest,
)
from tests.client.protocol.test_client_protocol import ADDRESSES, Host, Wire


class SessionHost(Host):
    """Answers appends when the test says so. Numbers of one entry each, from 0 on."""

    def __init__(self) -> None:
        super().__init__(0, producer="p")
        self.faults = False
        self.appends: list[tuple[Link, Wire, AppendRequest]] = []
        """That came and were not answered."""
        self.connects: list[ConnectProducer] = []
        self.last_sequence = -1
        """Whoever connects is told so."""
        self.forgotten_index = -1
        """In front of which no first connect opens anything."""
        self.questions = 0
        """After the last number; never answered."""

    def submit_append(self, timeout_ms: float = 5000) -> Request:
        request = Request(
            AppendRequest(),
            LEADER,
            submitted_ms=self.now,
            deadline_ms=self.now + timeout_ms,
            batch=EntryBatch.from_bodies([b"x"]),
            in_session=True,
        )
        self.protocol.submit(request, self.now)
        self.carry_out()
        return request

    def serve(self, link: Link, wire: Wire, frame: Frame) -> None:
        message = frame.message
        answer: ClientMessage
        if isinstance(message, Hello):
            number = ADDRESSES.index(link.address)
            connection_id = wire.connection_id
            answer = HelloResponse(member_id=f"n{number}", connection_id=connection_id, level=LEVEL)
        elif isinstance(message, ConnectProducer):
            self.connects.append(message)
            is_late = message.seen_index is not None and message.seen_index < self.forgotten_index
            answer = ConnectProducerResponse(
                request_id=message.request_id,
                opened=not is_late,
                epoch=ProducerEpoch(-1, -1) if is_late else ProducerEpoch(len(self.connects), 1),
                last_sequence=-1 if is_late else self.last_sequence,
                seen_index=self.forgotten_index if is_late else -1,
            )
        elif isinstance(message, AppendRequest):
            self.appends.append((link, wire, message))
            return
        elif isinstance(message, LastSequence):
            self.questions += 1
            return
        else:
            assert isinstance(message, StatusRequest), message
            answer = self.status(message, ADDRESSES.index(link.address))
        wire.to_client.append(Frame("g", answer, None))  # type: ignore[arg-type]

    def until_sent(self, *requests: Request) -> None:
        """By the protocol, and received by the leader."""
        self.until(lambda: len(self.appends) == len(requests))
        assert all(request.state is CallState.SENT for request in requests)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            for link, wire in list(self.wires.items()):
                while wire.to_server:
                    self.serve(link, wire, wire.to_server.pop(0))
                while wire.to_client and link in self.wires:
                    self.deliver_answer(link, wire)
            self.pass_time(10.0)
            if condition():
                return
        raise AssertionError("it never happened in virtual time")

    def answer(self, position: int, answer: ClientMessage) -> Link:
        link, wire, _ = self.appends.pop(position)
        wire.to_client.append(Frame("g", answer, None))  # type: ignore[arg-type]
        self.deliver_answer(link, wire)
        return link


def test_a_refusal_and_a_lost_connection_behind_it_hold_up_nobody() -> None:
    host = SessionHost()
    requests = [host.submit_append(), host.submit_append()]
    host.until_sent(*requests)
    refusal = error_response(host.appends[0][2].request_id, LeaderNotReady("it stops"))
    link = host.answer(0, refusal)
    host.appends.clear()
    host.lose(link)
    host.carry_out()
    host.until_sent(*requests)
    sequences = [append.session.sequence for _, _, append in host.appends if append.session]
    assert sequences == [0, 1], "the one that may be in the log has its number, the other its own"
    for request in requests:
        message = host.appends[0][2]
        host.answer(
            0,
            AppendResponse(
                request_id=message.request_id, term=1, first_index=3, count=1, durability="sync"
            ),
        )
        assert request.is_done and request.error is None


def test_what_was_out_of_place_behind_a_refusal_waits_as_long_as_that_says() -> None:
    host = SessionHost()
    requests = [host.submit_append(), host.submit_append()]
    host.until_sent(*requests)
    refused_at = host.now
    for refusal in (Overloaded("much", retry_after_ms=300), SequenceGap("a gap", expected_sequence=0)):
        host.answer(0, error_response(host.appends[0][2].request_id, refusal))
    host.carry_out()
    host.until_sent(*requests)
    assert refused_at + 300 <= host.now <= refused_at + 400


def test_who_cancels_what_was_sent_once_is_not_told_that_it_is_not_in_the_log() -> None:
    host = SessionHost()
    request = host.submit_append()
    host.until_sent(request)
    host.down = set(ADDRESSES)
    host.lose(host.appends[0][0])
    host.carry_out()
    assert request.state is CallState.WAITING
    host.protocol.cancel(request, host.now)
    host.carry_out()
    assert isinstance(request.error, OutcomeUnknown)


def test_a_question_that_is_cancelled_holds_up_no_append_on_another_connection() -> None:
    host = SessionHost()
    question = Request(
        LastSequence(producer="p"),
        LEADER,
        submitted_ms=host.now,
        deadline_ms=host.now + 5000,
        in_session=True,
    )
    host.protocol.submit(question, host.now)
    host.carry_out()
    host.until(lambda: host.questions == 1)
    host.protocol.cancel(question, host.now)
    host.carry_out()
    host.lose(next(link for link in host.wires if link.address == ADDRESSES[host.leader]))
    host.carry_out()
    request = host.submit_append()
    host.until_sent(request)


def test_behind_an_append_that_was_given_up_a_new_epoch_begins_and_numbers_stay() -> None:
    host = SessionHost()
    given_up, other = host.submit_append(timeout_ms=1000), host.submit_append(timeout_ms=9000)
    host.until_sent(given_up, other)
    first_epoch = host.appends[0][2].session
    assert first_epoch is not None
    host.pass_time(1500.0)
    assert isinstance(given_up.error, OutcomeUnknown)
    host.last_sequence = 1  # both had come in
    link = host.appends[0][0]
    host.appends.clear()
    host.lose(link)
    host.carry_out()
    host.until_sent(other)
    again = host.appends[0][2].session
    assert again is not None
    assert [connect.ends for connect in host.connects] == [None, first_epoch.epoch]
    assert again.epoch != first_epoch.epoch
    assert again.sequence == 1


def test_who_gives_up_on_a_gap_is_told_which_number_is_expected() -> None:
    host = SessionHost()
    requests = [host.submit_append(), host.submit_append()]
    host.until_sent(*requests)
    gap = SequenceGap("1 came where 0 was expected", expected_sequence=0)
    link = host.answer(1, error_response(host.appends[1][2].request_id, gap))
    host.down = set(ADDRESSES)
    host.lose(link)
    host.pass_time(6000.0)
    first, second = requests
    assert isinstance(first.error, OutcomeUnknown)
    assert isinstance(second.error, SequenceGap)
    assert second.error.expected_sequence == 0
    assert "gave up after" in str(second.error)


def test_what_a_stream_says_of_records_that_are_in_the_log_already() -> None:
    window = AppendWindow(5, BatchGatherer(10, 1000, lambda: 0.0))
    for sequence in (10, 13, 16):
        batch = EntryBatch.from_bodies([b"x"] * 3)
        request = Request(
            AppendRequest(),
            LEADER,
            submitted_ms=0,
            deadline_ms=1,
            batch=batch,
            sequence=sequence,
            state=CallState.DONE,
        )
        request.error = AlreadyCommitted("14 is the last", last_sequence=14)
        window.add(request)
    assert window.progress.committed_records == 3 + 2
    assert window.progress.unknown_records == 0


def test_a_first_connect_is_meant_for_the_log_that_knew_no_such_producer() -> None:
    host = SessionHost()
    host.forgotten_index = 7
    host.until_sent(host.submit_append())
    first, second = host.connects
    assert (first.ends, first.seen_index) == (None, -1)
    assert (second.ends, second.seen_index, second.token) == (None, 7, first.token)
    assert host.appends[0][2].session is not None
