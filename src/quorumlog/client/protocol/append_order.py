"""Appends that enter the log in the order of their submission."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from itertools import islice
from random import Random

from quorumlog.client.protocol.client_requests import Request, Stream
from quorumlog.errors import (
    AlreadyCommitted,
    BadRequest,
    LedgerError,
    OutcomeUnknown,
    OutOfSequence,
    ProducerExpired,
    ProducerFenced,
    Refused,
    SequenceGap,
)
from quorumlog.log_state.control_entries import ANONYMOUS, TOKEN_BYTES, ProducerEpoch
from quorumlog.net.rpc.calls import LEADER, CallState, Link
from quorumlog.net.rpc.tracker import CallTracker
from quorumlog.wire.client_messages import ConnectProducer, ConnectProducerResponse, Numbered


class OrderedStreams:
    def __init__(self, calls: CallTracker) -> None:
        self._calls = calls
        self._numbers = itertools.count(1)
        self.waiting: dict[Stream, None] = {}
        """Streams that could not send: no leader, back-off, or answers due on another connection."""

    def new_stream(self) -> Stream:
        """Any thread."""
        return Stream(next(self._numbers))

    @property
    def is_waiting(self) -> bool:
        return bool(self.waiting)

    def resume_times_ms(self) -> list[float]:
        return [stream.resume_at_ms for stream in self.waiting]

    def submit(self, request: Request) -> None:
        stream = _stream_of(request)
        stream.queue.append(request)
        self._pump(stream)

    def pump(self) -> None:
        for stream in list(self.waiting):
            self._pump(stream)

    # ---------------------------------------------------------------- what became of a request

    def answered(self, request: Request) -> None:
        stream = _stream_of(request)
        stream.in_flight -= 1
        stream.attempts = 0
        stream.forget_done()
        self._answered(stream)

    def refused(self, request: Request, error: LedgerError) -> None:
        """By the server; for good unless it is retriable."""
        stream = _stream_of(request)
        stream.in_flight -= 1
        stream.draining = True
        if isinstance(error, Refused) and error.retriable:
            request.state = CallState.WAITING
        else:
            self._calls.fail(request, error)
            stream.failure = stream.failure or error
        self._answered(stream)

    def interrupted(self, request: Request) -> bool:
        return False

    def unanswered(self, request: Request) -> None:
        stream = _stream_of(request)
        stream.in_flight -= 1
        stream.failure = stream.failure or request.error
        self._answered(stream)

    def cancelled(self, request: Request) -> None:
        self._fail(_stream_of(request), BadRequest("an earlier batch was cancelled"))

    def fail_all(self, error: LedgerError) -> None:
        for stream in list(self.waiting):
            self._fail(stream, error)

    def expire(self, too_late: Callable[[Request], LedgerError]) -> None:
        """Deadlines of waiting appends. Those in flight have an earlier one, checked elsewhere."""
        for stream in list(self.waiting):
            waiting = stream.waiting()
            if waiting and waiting[0].deadline_ms <= self._calls.now_ms and not stream.in_flight:
                self._fail(stream, too_late(waiting[0]))

    def _fail(self, stream: Stream, error: LedgerError) -> None:
        """The first waiting request fails with `error`, and with it everything after it."""
        waiting = stream.waiting()
        if waiting:
            self._calls.fail(waiting[0], error)
        self._end(stream, error)

    # ---------------------------------------------------------------- order

    def _pump(self, stream: Stream) -> None:
        """Send what waits, if nothing in flight could still be refused before it."""
        if stream.failure is not None:
            self._end(stream, stream.failure)
            return
        waiting = stream.waiting()
        if stream.draining or not waiting:
            self.waiting.pop(stream, None)
            return
        link = self._calls.leader_link() if stream.resume_at_ms <= self._calls.now_ms else None
        # What is in flight on another connection must be answered first.
        if link is None or (stream.in_flight and link is not stream.link):
            self.waiting[stream] = None
            self._calls.leader_wanted()
            return
        self.waiting.pop(stream, None)
        stream.link = link
        for request in waiting:
            request.number = stream.numbers.get(link, 1)
            if not self._calls.send(link, request):
                assert request.error is not None
                stream.failure = request.error
                self._answered(stream)
                return
            stream.numbers[link] = request.number + 1
            stream.in_flight += 1

    def _answered(self, stream: Stream) -> None:
        """A stream that was stopped goes on, or gives up, once nothing of it is in flight."""
        assert stream.in_flight >= 0, stream.in_flight
        if stream.in_flight or not (stream.draining or stream.failure):
            return
        stream.draining = False
        if stream.failure is not None:
            self._end(stream, stream.failure)
            return
        first = stream.queue[0]
        assert first.state is CallState.WAITING, first.state
        assert first.refusal is not None
        assert stream.link is not None
        if any(request.state is CallState.DONE for request in stream.queue):
            # The server accepted a later one. Sent again, the first would come after it.
            self._fail(stream, first.refusal)
            return
        # Refused for its number alone: the server, which remembers a bounded number of streams, has
        # forgotten this one, and all that it had accepted of it is answered.
        is_forgotten = isinstance(first.refusal, OutOfSequence)
        stream.numbers[stream.link] = 1 if is_forgotten else first.number
        stream.attempts += 1
        stream.resume_at_ms = self._calls.now_ms + self._calls.backoff_ms(first.refusal, stream.attempts)
        self._pump(stream)

    def _end(self, stream: Stream, error: LedgerError) -> None:
        stream.failure = error
        for request in stream.waiting():
            self._calls.fail(request, _behind(error))
        stream.forget_done()
        self.waiting.pop(stream, None)


def _stream_of(request: Request) -> Stream:
    assert request.stream is not None
    return request.stream


# ----------------------------------------------------------------
# ProducerSession: appends of one producer, which stand in the log once and in order, whatever is lost.
#
# Requests are numbered when they are sent first, and sent in their order, at most five of them, counted
# from the oldest that has no outcome: of so many the log remembers where they lie. One whose outcome is
# unknown is sent again under its number.
#
#     a receipt                    done
#     refused, may pass            nothing more is sent until all in flight is answered; then again
#     no answer, outcome unknown   the same, from the first that has no outcome
#     its time is over             its outcome stays unknown. A new epoch begins before anything else is
#                                  sent: a late copy of it can then not come in under a number that means
#                                  another entry
#     another one has connected    this session is over
#
# The answer that opens an epoch says what is in the log. Who has a number up to there keeps it, and is
# sent again for its receipt; everybody else gets a new one.

MOST_UNANSWERED = 5
"""Batches of a session that a log remembers (`log_state/producers.py`)."""


class ProducerSession:
    def __init__(self, calls: CallTracker, producer: str, random: Random) -> None:
        self._calls = calls
        self.producer = producer
        self._random = random
        self._epoch: ProducerEpoch | None = None
        """None: none was opened yet."""
        self._ends: ProducerEpoch | None = None
        """The epoch that the next one is to end."""
        self._token = b""
        """Of the epoch that is to begin next; empty: not drawn yet."""
        self._seen_index = None if self.is_anonymous else -1
        """Of the log that knew no such producer; see `ConnectProducer`. No anonymous one is connected
        under an id that was forgotten."""
        self._must_open = True
        self._opening: Request | None = None
        """Under way."""
        self._next_sequence = 0
        self._queue: deque[Request] = deque()
        """In order; the first has no outcome."""
        self._in_flight = 0
        self._link: Link | None = None
        """Of what is in flight, or was last."""
        self._is_draining = False
        self._busy: Refused | None = None
        """What has said first that it may be tried again later: what comes after it is out of place."""
        self._failure: LedgerError | None = None
        """The session is over."""
        self._attempts = 0
        """Refusals in a row."""
        self.resume_at_ms = 0.0

    @property
    def is_waiting(self) -> bool:
        """For a server to send to, or for its time."""
        # After those that may be in flight all wait.
        oldest = islice(self._queue, MOST_UNANSWERED)
        return self._opening is None and any(r.state is CallState.WAITING for r in oldest)

    @property
    def is_anonymous(self) -> bool:
        return self.producer.startswith(ANONYMOUS)

    def submit(self, request: Request) -> None:
        if request.stream is not None and request.stream.failure is not None:
            self._calls.fail(request, _behind(request.stream.failure))
            return
        self._queue.append(request)
        self.pump()

    # ---------------------------------------------------------------- what became of a request

    def answered(self, request: Request) -> None:
        """It is done."""
        self._in_flight -= 1
        self._attempts = 0
        self._go_on()

    def refused(self, request: Request, error: LedgerError) -> None:
        self._in_flight -= 1
        self._is_draining = True
        if isinstance(error, ProducerFenced | ProducerExpired):
            self._lost(request, error)
        elif isinstance(error, SequenceGap):
            self._out_of_place(request, error)
        elif isinstance(error, OutcomeUnknown):
            self._wait_again(request, is_unknown=True)
        elif isinstance(error, Refused) and error.retriable:
            self._busy = self._busy or error
            self._wait_again(request)
        else:
            self._fail(request, error)
        self._go_on()

    def interrupted(self, request: Request) -> bool:
        """`pump` follows once all of that connection are notified."""
        self._in_flight -= 1
        if not self._in_flight:
            self._is_draining = False  # no more answers come, whatever was refused before
            self._busy = None
        self._wait_again(request, is_unknown=request.batch is not None)
        return True

    def unanswered(self, request: Request) -> None:
        self._in_flight -= 1
        self._must_open |= request.batch is not None
        self._fail_stream_of(request)
        self._go_on()

    def _lost(self, request: Request, error: LedgerError) -> None:
        """The epoch that stands is not this one, if any does."""
        is_own_past = request.numbered is not None and request.numbered.epoch != self._epoch
        is_evicted = isinstance(error, ProducerExpired) and self.is_anonymous
        if is_own_past or (is_evicted and not any(r.may_be_done for r in self._queue)):
            self._must_open = True
            self._ends = self._epoch if is_own_past else None
            self._wait_again(request)
            return
        self._failure = self._failure or error
        self._fail(request, error)

    def _out_of_place(self, request: Request, error: SequenceGap) -> None:
        """What is before it is not in the log: sent again, it may follow."""
        first = next(r for r in self._queue if not r.is_done)
        if first is not request:
            self._wait_again(request)
            return
        self._must_open = True
        if request.is_numbered_by_caller:
            self._fail(request, error)
        else:
            self._wait_again(request)  # under another number

    def _wait_again(self, request: Request, *, is_unknown: bool = False) -> None:
        request.state = CallState.WAITING
        request.may_be_done |= is_unknown
        if request.stream is not None and request.stream.failure is not None:
            self._fail(request, _behind(request.stream.failure))

    def _fail(self, request: Request, error: LedgerError) -> None:
        if request.numbered is not None and not isinstance(error, AlreadyCommitted):
            self._must_open = True  # its numbers are nobody's
        self._calls.fail(request, error)
        self._fail_stream_of(request)

    def _fail_stream_of(self, request: Request) -> None:
        """What comes after it in a stream must not get in without it."""
        stream = request.stream
        if stream is None or stream.failure is not None:
            return
        assert request.error is not None
        stream.failure = request.error
        for other in list(self._queue):
            if other.stream is stream and other.state is CallState.WAITING:
                self._fail(other, _behind(request.error))

    def _go_on(self) -> None:
        """Once nothing is in flight, what was stopped is sent again."""
        assert self._in_flight >= 0, self._in_flight
        self._forget_done()
        if self._is_draining and self._in_flight == 0:
            self._is_draining = False
            busy, self._busy = self._busy, None
            if busy is not None:
                self._attempts += 1
                wait_ms = self._calls.backoff_ms(busy, self._attempts)
                self.resume_at_ms = self._calls.now_ms + wait_ms
        self.pump()

    def _forget_done(self) -> None:
        while self._queue and self._queue[0].is_done:
            self._queue.popleft()

    # ---------------------------------------------------------------- sending

    def pump(self) -> None:
        """Send the appends that may be sent. Called when a leader is known, a link is open, or time has
        passed."""
        self._forget_done()
        if self._failure is not None:
            self._fail_waiting(self._failure)
            return
        waits = self._is_draining or self.resume_at_ms > self._calls.now_ms
        if waits or not self.is_waiting:
            return
        if self._must_open:
            if not self._in_flight:
                self._open()
            return
        link = self._calls.leader_link()
        if link is None:
            self._calls.leader_wanted()
            return
        if self._in_flight and link is not self._link:
            return  # what is in flight elsewhere is answered first
        self._link = link
        for request in list(islice(self._queue, MOST_UNANSWERED)):
            if request.state is CallState.WAITING and not self._send(link, request):
                self.pump()
                return

    def _send(self, link: Link, request: Request) -> bool:
        next_sequence, numbered = self._next_sequence, request.numbered
        self._number(request)
        if self._calls.send(link, request):
            self._in_flight += 1
            return True
        # Too large, say: nothing of it has left now, and nothing after it was sent before.
        if numbered is None:
            self._next_sequence = next_sequence
        else:
            self._must_open = True
        self._fail_stream_of(request)
        return False

    def _number(self, request: Request) -> None:
        if request.batch is None:
            return
        if request.sequence < 0:
            request.sequence = self._next_sequence
        elif request.numbered is None:
            request.may_be_old = request.sequence < self._next_sequence
        self._next_sequence = max(self._next_sequence, request.sequence + request.record_count)
        assert self._epoch is not None
        request.numbered = Numbered(self.producer, self._epoch, request.sequence)

    def resume_times_ms(self) -> list[float]:
        return [self.resume_at_ms] if self.is_waiting else []

    def expire(self, too_late: Callable[[Request], LedgerError]) -> None:
        """Deadlines of waiting appends."""
        late = [
            r
            for r in self._queue
            if r.state is CallState.WAITING and r.deadline_ms <= self._calls.now_ms
        ]
        for request in late:
            if request.state is CallState.WAITING:
                self._fail(request, too_late(request))
        if late:
            self._go_on()

    def cancelled(self, request: Request) -> None:
        self._must_open |= request.numbered is not None
        self._fail_stream_of(request)
        self._go_on()

    def fail_all(self, error: LedgerError) -> None:
        """All that waits."""
        self._fail_waiting(error)
        self._forget_done()

    def _fail_waiting(self, error: LedgerError) -> None:
        for request in list(self._queue):
            if request.state is CallState.WAITING:
                self._fail(request, error)
        self._forget_done()

    # ---------------------------------------------------------------- opening

    def _open(self) -> None:
        """Begin an epoch; under the token of an earlier try whose answer was lost, for it may stand."""
        self._token = self._token or self._random.randbytes(TOKEN_BYTES)
        deadline_ms = max(r.deadline_ms for r in self._queue if not r.is_done)
        message = ConnectProducer(
            producer=self.producer,
            token=self._token,
            ends=self._ends,
            seen_index=None if self._ends is not None else self._seen_index,
        )
        self._opening = Request(
            message,
            LEADER,
            submitted_ms=self._calls.now_ms,
            deadline_ms=deadline_ms,
            on_done=self._opened,
        )
        self._calls.dispatch(self._opening)

    def _opened(self, request: Request) -> None:
        self._opening = None
        assert isinstance(request.message, ConnectProducer)
        if request.error is not None:
            self._not_opened(request.error)
            return
        response = request.response
        assert isinstance(response, ConnectProducerResponse), response
        if not response.opened and response.epoch.index < 0:
            self._seen_index = response.seen_index
            self._open_if_wanted()
            return
        if not response.opened:
            if self._epoch is not None:
                self._failure = ProducerFenced(
                    f"another client has connected as producer {self.producer!r} since"
                )
                self.pump()
                return
            self._ends = response.epoch
            self._open_if_wanted()
            return
        self._epoch, self._ends, self._token = response.epoch, response.epoch, b""
        self._must_open = False
        self._number_anew(response.last_sequence)
        self.pump()

    def _open_if_wanted(self) -> None:
        if any(not r.is_done for r in self._queue):
            self._open()

    def _not_opened(self, error: LedgerError) -> None:
        may_begin_anew = self._epoch is None or (
            self.is_anonymous and not any(r.may_be_done for r in self._queue)
        )
        if isinstance(error, ProducerExpired) and may_begin_anew:
            self._ends = None  # it was forgotten between two questions
        elif isinstance(error, ProducerExpired):
            self._failure = error
        elif error.retriable or isinstance(error, OutcomeUnknown):
            for request in [r for r in self._queue if r.deadline_ms <= self._calls.now_ms]:
                if not request.is_done:
                    self._fail(request, error)
        else:
            self._fail_waiting(error)
        self.pump()

    def _number_anew(self, last_sequence: int) -> None:
        self._next_sequence = last_sequence + 1
        for request in self._queue:
            if request.is_done or request.batch is None or request.is_numbered_by_caller:
                continue
            if 0 <= request.sequence <= last_sequence:
                stop = request.sequence + request.record_count
                self._next_sequence = max(self._next_sequence, stop)
            else:
                request.sequence = -1
                request.numbered = None
                request.may_be_done = False  # nor ever will: its epoch is over


def _behind(error: LedgerError) -> LedgerError:
    return OutOfSequence(f"not written: an earlier batch of its stream failed: {error}")


def anonymous_id(random: Random) -> str:
    return ANONYMOUS + random.randbytes(16).hex()
