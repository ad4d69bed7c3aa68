"""The order of `append_stream`: what may be sent when, and what a refusal means for all behind it.

The leader accepts number n of a stream on a connection only after n - 1, and once it has refused n it
refuses what was sent behind it. So after a refusal

    1  nothing more is sent; the answers to what is in flight come in (draining)
    2  all of them are refusals: from the first refused one on, everything is sent again, under the same
       numbers, after a back-off and wherever the leader is then
    3  one of them is not (unknown, or refused for good): the stream has failed. What was not sent never
       will be, since it would come behind a gap

A server that has forgotten a stream, for want of room, refuses its next number; then step 2 begins at
number 1 again.

Step 2 waits for step 1 because an entry whose outcome is open must not be sent a second time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from quorumlog.client.protocol.client_requests import Request, Stream
from quorumlog.errors import BadRequest, LedgerError, OutOfSequence, Refused
from quorumlog.net.rpc.calls import CallState, Link


class StreamPort(Protocol):
    """What streams need of the requests' tracker."""

    @property
    def now_ms(self) -> float: ...
    def leader_link(self) -> Link | None: ...
    def send(self, link: Link, request: Request) -> bool: ...
    def fail(self, request: Request, error: LedgerError) -> None: ...
    def backoff_ms(self, error: LedgerError | None, attempts: int) -> float: ...
    def leader_wanted(self) -> None: ...


class OrderedStreams:
    def __init__(self, port: StreamPort) -> None:
        self._port = port
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
            self._port.fail(request, error)
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
        """Deadlines of what waits. What is in flight has an earlier one, and is looked at elsewhere."""
        for stream in list(self.waiting):
            waiting = stream.waiting()
            if waiting and waiting[0].deadline_ms <= self._port.now_ms and not stream.in_flight:
                self._fail(stream, too_late(waiting[0]))

    def _fail(self, stream: Stream, error: LedgerError) -> None:
        """The first waiting request fails with `error`, and with it everything behind it."""
        waiting = stream.waiting()
        if waiting:
            self._port.fail(waiting[0], error)
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
        link = self._port.leader_link() if stream.resume_at_ms <= self._port.now_ms else None
        # What is in flight on another connection must be answered first.
        if link is None or (stream.in_flight and link is not stream.link):
            self.waiting[stream] = None
            self._port.leader_wanted()
            return
        self.waiting.pop(stream, None)
        stream.link = link
        for request in waiting:
            request.number = stream.numbers.get(link, 1)
            if not self._port.send(link, request):
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
            # The server accepted a later one. Sent again, the first would come behind it.
            self._fail(stream, first.refusal)
            return
        # Refused for its number alone: the server, which remembers a bounded number of streams, has
        # forgotten this one, and all that it had accepted of it is answered.
        is_forgotten = isinstance(first.refusal, OutOfSequence)
        stream.numbers[stream.link] = 1 if is_forgotten else first.number
        stream.attempts += 1
        stream.resume_at_ms = self._port.now_ms + self._port.backoff_ms(first.refusal, stream.attempts)
        self._pump(stream)

    def _end(self, stream: Stream, error: LedgerError) -> None:
        stream.failure = error
        for request in stream.waiting():
            self._port.fail(
                request,
                OutOfSequence(f"not written: an earlier batch of its stream failed: {error}"),
            )
        stream.forget_done()
        self.waiting.pop(stream, None)


def _stream_of(request: Request) -> Stream:
    assert request.stream is not None
    return request.stream
