"""The client without its sockets: bytes and time go in, connections to dial, bytes to write and
finished requests come out (`take_work`). Times are milliseconds of any monotonic clock.

Decided here: when a connection is given up. A paused leader stalls nobody: a server that owes an answer
for `probe_after_ms` is asked for a sign of life, and the others who leads. Only the report of another
leader takes requests away from it: silence proves nothing, the only leader may just be slow.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from quorumlog.client.protocol.client_requests import (
    CLOSED,
    NO_GREETING,
    Lane,
    Link,
    LinkState,
    Request,
    RequestState,
    Stream,
    TargetKind,
)
from quorumlog.client.protocol.client_timings import ClientTimings
from quorumlog.client.protocol.cluster_view import ClusterView, EventKind, GroupEvent
from quorumlog.client.protocol.link_table import LinkTable
from quorumlog.client.protocol.order.producer_session import ProducerSession, anonymous_id
from quorumlog.client.protocol.request_tracker import RequestTracker
from quorumlog.errors import BadRequest, LedgerError, ProtocolViolation, UnknownGroup, WrongPort
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.net.hello import (
    LOG,
    PROTOCOL_VERSION,
    Challenge,
    ChallengeResponse,
    Greeting,
    HelloResponse,
    check_product,
    client_hello,
)
from quorumlog.net.strangers import OtherSoftware
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import StatusResponse


class Work(NamedTuple):
    """What the client has to do now, in this order."""

    completed: list[Request]
    close: list[Link]
    dial: list[Link]
    write: list[Link]
    events: list[GroupEvent]


class ClientProtocol:
    """Not thread-safe: the blocking client holds a lock around it."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        group: str,
        random: Random,
        timings: ClientTimings | None = None,
        producer: str | None = None,
        answer: Callable[[Challenge], bytes] | None = None,
    ) -> None:
        """`producer`: the id under which appends stand in the log once; empty: one of its own. `answer`:
        to a server that asks who this is; a LedgerError that it raises ends the connection."""
        assert servers, "a client needs at least one server"
        self.group = group
        self.timings = timings or ClientTimings()
        self.cluster_id = ""
        self._answer = answer
        # Shuffled, so that a thousand clients with one list do not all ask the same server first.
        shuffled = list(servers)
        random.shuffle(shuffled)
        self.view = ClusterView(shuffled, distrust_lost_ms=self.timings.connect_timeout_ms)
        self._links = LinkTable(random)
        self._requests = RequestTracker(group, self.view, self._links, self.timings, random)
        self._router = self._requests.router
        if producer is not None:
            producer = producer or anonymous_id(random)
            self._requests.session = ProducerSession(self._requests, producer, random)
        self._ticked_ms = 0.0
        self._events = self._requests.events
        self._told_leader = ""
        self._lost: dict[str, None] = {}
        """Servers whose connection for appends was lost and does not stand again."""

    # ---------------------------------------------------------------- what callers ask for

    @property
    def is_closed(self) -> bool:
        """Any thread."""
        return self._links.is_closed

    @property
    def producer(self) -> str | None:
        """None: appends are in no session. Any thread."""
        session = self._requests.session
        return None if session is None else session.producer

    def check_open(self) -> None:
        """Raises BadRequest. Any thread."""
        if self._links.is_closed:
            raise BadRequest("the client is closed")

    def submit(self, request: Request, now_ms: float) -> None:
        """Its outcome is in `Work.completed` of a later `take_work`."""
        requests = self._requests
        requests.now_ms = now_ms
        request.seen_index = self.view.seen_index
        if request.is_done:
            return  # cancelled by another thread, before it came here
        if self._links.is_closed:
            requests.fail(request, BadRequest("the client is closed"))
        elif request.in_session:
            assert requests.session is not None
            requests.session.submit(request)
        elif request.stream is not None:
            requests.streams.submit(request.stream, request)
        else:
            requests.dispatch(request)

    def new_stream(self) -> Stream:
        """Any thread."""
        return self._requests.streams.new_stream()

    def cancel(self, request: Request, now_ms: float) -> None:
        """Nobody waits for it any more. What has not left never will; what has is only forgotten: an
        append goes on to its outcome."""
        self._requests.now_ms = now_ms
        self._requests.cancel(request)

    def close(self, now_ms: float) -> None:
        self._requests.now_ms = now_ms
        self._links.is_closed = True
        self._requests.fail_waiting(BadRequest("the client was closed before the request was sent"))
        for link in self._links.all():
            self._drop(link, "the client was closed")
        # Reads that were in flight wait again: they could be repeated, but not by this client.
        self._requests.fail_waiting(BadRequest("the client was closed"))
        self._requests.fail_waiting_streams(BadRequest("the client was closed"))
        assert not self._links.all(), self._links.all()

    # ---------------------------------------------------------------- what the connections bring

    def advance(self, now_ms: float) -> None:
        """Deadlines, silences, redials. Call at `next_wakeup_ms` at the latest."""
        self._requests.now_ms = self._ticked_ms = now_ms
        self._requests.expire()
        for link in self._links.all():
            self._look_at(link)
        self._requests.send_waiting()
        self._requests.seek()

    def next_wakeup_ms(self) -> float:
        """When `advance` has something to do; infinity while nothing is under way."""
        resume_times_ms = self._requests.resume_times_ms()
        if not resume_times_ms and not self._links.is_busy:
            return float("inf")
        later = [at for at in resume_times_ms if at > self._requests.now_ms]
        return min([self._ticked_ms + self.timings.tick_ms, *later])

    def link_connected(self, link: Link, now_ms: float) -> None:
        self._requests.now_ms = now_ms
        assert link.state is LinkState.DIALING, link.state
        link.state = LinkState.GREETING
        link.since_ms = link.last_received_ms = now_ms
        hello = client_hello(LOG)
        if link.lane is Lane.CONTROL and self._requests.only_looks:
            hello = msgspec.structs.replace(hello, looks=True)
        link.outbox += encode_frame(self.group, hello)
        self._links.to_write[link] = None

    def link_lost(self, link: Link, reason: str | ProtocolViolation, now_ms: float) -> None:
        """It could not be dialled, broke, was closed by the server, or brought nonsense."""
        self._requests.now_ms = now_ms
        if isinstance(reason, ProtocolViolation):
            if link.state is LinkState.GREETING and isinstance(reason, OtherSoftware):
                self._turned_away(link, reason.at(link.address))
            reason = f"protocol violation: {reason}"
        if link.state is LinkState.GREETING and reason in (CLOSED, os.strerror(errno.ECONNRESET)):
            reason += NO_GREETING
        if link.state is not LinkState.CLOSED:
            self._drop(link, reason)

    def frames_received(self, link: Link, frames: Sequence[Frame], now_ms: float) -> None:
        """Nonsense among them closes the link."""
        self._requests.now_ms = now_ms
        try:
            for group, message, batch in frames:
                if link.state is LinkState.CLOSED:
                    return
                link.last_received_ms = now_ms
                if batch is not None:
                    link.last_entries_ms = now_ms
                if not isinstance(message, ClientMessage) or (
                    # The port of another product knows of no groups.
                    group != self.group and getattr(message, "product", LOG) == LOG
                ):
                    raise ProtocolViolation(f"{type(message).__name__} of group {group!r} at a client")
                if link.state is LinkState.GREETING:
                    self._greeting_answered(link, message)
                    continue
                if isinstance(message, Greeting):
                    raise ProtocolViolation("a greeting in the middle of a connection")
                request = link.pending.pop(message.request_id, None)
                if request is None:
                    continue  # it came after its deadline and is nobody's any more
                if request is link.probe:
                    self._probe_answered(link, message)
                else:
                    self._requests.answered(link, request, message, batch)
        except ProtocolViolation as violation:
            assert link.state is not LinkState.CLOSED, link.address
            self._drop(link, f"protocol violation: {violation}")

    def bytes_received(self, link: Link, now_ms: float) -> None:
        """Part of a frame: the server is not silent."""
        link.last_received_ms = link.last_entries_ms = now_ms

    def take_work(self) -> Work:
        links, requests, leader = self._links, self._requests, self.view.leader
        if leader is not None and leader.address != self._told_leader:
            self._told_leader = leader.address
            self._events.append(GroupEvent(EventKind.LEADER, leader.address))
        work = Work(
            requests.completed, links.to_close, links.to_dial, list(links.to_write), [*self._events]
        )
        self._events.clear()
        requests.completed = []
        links.to_close = []
        links.to_dial = []
        links.to_write = {}
        return work

    # ---------------------------------------------------------------- greetings and probes

    def _challenged(self, link: Link, challenge: Challenge) -> None:
        if self._answer is None:
            self._drop(link, f"asks who this is ({challenge.mechanism}), and this client cannot say")
            return
        try:
            answer = ChallengeResponse(data=self._answer(challenge))
        except LedgerError as error:
            self._drop(link, str(error))
            return
        link.outbox += encode_frame(self.group, answer)
        self._links.to_write[link] = None

    def _greeting_answered(self, link: Link, message: ClientMessage) -> None:
        if isinstance(message, Challenge):
            self._challenged(link, message)
            return
        if isinstance(message, ErrorResponse):
            message = HelloResponse(code=message.code, message=message.message)
        if not isinstance(message, HelloResponse):
            raise ProtocolViolation(f"{type(message).__name__} instead of a greeting")
        try:
            check_product(message, LOG, link.address)
        except WrongPort as refusal:
            self._turned_away(link, refusal)
            return
        if message.code != 200:
            self._turned_away(link, error_of(ErrorResponse(code=message.code, message=message.message)))
            return
        if message.protocol != PROTOCOL_VERSION:
            self._drop(link, f"speaks protocol {message.protocol}, this client {PROTOCOL_VERSION}")
            return
        if message.cluster_id and self.cluster_id and message.cluster_id != self.cluster_id:
            # A stray address in the list must not splice two logs into one.
            self._drop(link, f"belongs to another cluster ({message.cluster_id}, not {self.cluster_id})")
            return
        self.cluster_id = self.cluster_id or message.cluster_id
        link.hello = message
        self._links.greeted(link, self._requests.now_ms)
        self.view.notes.pop(link.address, None)
        if message.member_id:
            self.view.greeted_by(message.member_id, link.address)
        if link.lane is Lane.CONTROL:
            if link.address in self._lost:
                del self._lost[link.address]
                self._events.append(GroupEvent(EventKind.BACK, link.address))
            self._router.ask_status(link, self._requests.now_ms)
        self._requests.send_waiting()

    def _probe_answered(self, link: Link, message: ClientMessage) -> None:
        assert link.probe is not None
        link.probe.state = RequestState.DONE
        link.probe = None
        if isinstance(message, StatusResponse):
            self._requests.learn(link, message)
        elif isinstance(message, ErrorResponse):
            self._turned_away(link, error_of(message))

    def _turned_away(self, link: Link, refusal: LedgerError) -> None:
        """By the server. If all say "unknown group", or are none of a log, no time will help."""
        if isinstance(refusal, UnknownGroup | WrongPort):
            self.view.group_unknown[link.address] = refusal
        reason = str(refusal).removeprefix(f"{link.address} ").removeprefix(f"{link.address}: ")
        is_wrong = isinstance(refusal, WrongPort)
        self._drop(link, reason if is_wrong else f"turned this client away: {reason}")
        error = self.view.group_unknown_to_all()
        if error is not None:
            self._requests.fail_waiting(error)
            self._requests.fail_waiting_streams(error)

    # ---------------------------------------------------------------- what goes wrong

    def _drop(self, link: Link, reason: str) -> None:
        was_open = link.state is LinkState.OPEN
        now_ms = self._requests.now_ms
        self._links.remove(link, now_ms)
        self.view.note(link.address, reason, now_ms)
        if not was_open:
            self.view.forget_greeting(link.address)
        if was_open and link.lane is Lane.CONTROL and not self._links.is_closed:
            self._lost[link.address] = None
            self._events.append(GroupEvent(EventKind.LOST, link.address, reason))
        self._router.connection_ended(link, now_ms, was_open=was_open)
        self._requests.connection_ended(link, reason, was_open=was_open)

    def _look_at(self, link: Link) -> None:
        """Does it not answer at all, or owe an answer for too long?"""
        timings, now_ms = self.timings, self._requests.now_ms
        if link.state in (LinkState.DIALING, LinkState.GREETING):
            if now_ms - link.since_ms > timings.connect_timeout_ms:
                verb = "connection" if link.state is LinkState.DIALING else "greeting"
                self._drop(link, f"no {verb} within {timings.connect_timeout_ms:.0f} ms")
            return
        silent_ms = link.silent_ms(now_ms)
        if link.state is not LinkState.OPEN or silent_ms <= timings.probe_after_ms:
            return
        self._router.suspect(link, now_ms)
        requests = [r for r in link.pending.values() if r is not link.probe]
        leader = self.view.leader
        if (
            leader is not None
            and leader.address != link.address
            and any(r.target.kind is TargetKind.LEADER for r in requests)
        ):
            self._drop(link, f"silent for {silent_ms:.0f} ms, and {leader.address} leads in its place")
        elif silent_ms > timings.move_read_after_ms and any(
            r.target.kind is TargetKind.ANY for r in requests
        ):
            self._drop(link, f"silent for {silent_ms:.0f} ms")
            self._links.rest(link.address, now_ms + timings.connect_timeout_ms)
        elif not requests and silent_ms > 4 * timings.connect_timeout_ms:
            # Nobody needs it, and an idle client should not tick for ever because of a dead machine.
            self._drop(link, f"silent for {silent_ms:.0f} ms")
