"""The client without its sockets: who leads, what was answered, what became of every request.

Both clients drive this one object: bytes and time go in, connections to dial, bytes to write and
finished requests come out (`take_work`). It decides

- **where** a request goes: to the leader, learned from StatusResponse and from the hint of a refusal;
  without one, servers are asked all few tens of milliseconds, one more each time, all at once when a
  leader was lost;
- **what happened** to an append: committed, refused (sent again inside its deadline, since a refusal
  proves that nothing was written) or unknown. An unknown one is never sent again: it may be in the log;
- **that a paused leader stalls nobody**: a server that owes an answer for `probe_after_ms` is asked for
  a sign of life, and the others who leads. Only the report of another leader takes requests away from
  it: silence alone proves nothing, and the only leader there is may just be slow.

Times are milliseconds of any monotonic clock.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    ProtocolViolation,
    Refused,
    RequestTimeout,
    UnknownGroup,
    Unreachable,
)
from quorumlog.wire.client_messages import (
    PROTOCOL_VERSION,
    AppendRequest,
    AppendResponse,
    ClientMessage,
    ErrorResponse,
    Hello,
    HelloResponse,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    StatusResponse,
    TransferRequest,
    TransferResponse,
    error_of,
)
from quorumlog.wire.client_requests import (
    LEADER,
    Lane,
    Link,
    LinkState,
    Request,
    RequestState,
    Stream,
    Target,
    TargetKind,
)
from quorumlog.wire.cluster_view import ClusterView
from quorumlog.wire.framing import Frame, encode_frame
from quorumlog.wire.link_table import LinkTable
from quorumlog.wire.ordered_streams import OrderedStreams
from quorumlog.wire.request_encoding import encode_request

_RESPONSE_OF: dict[type[ClientMessage], type[ClientMessage]] = {
    AppendRequest: AppendResponse,
    ReadRequest: ReadResponse,
    StatusRequest: StatusResponse,
    TransferRequest: TransferResponse,
}


@dataclass(frozen=True, slots=True)
class ClientTimings:
    """Milliseconds. A fail-over costs at most `tick_ms` and `ask_interval_ms` above the election."""

    tick_ms: float = 25.0
    """How often deadlines and silences are looked at while anything is under way."""
    ask_interval_ms: float = 30.0
    """Between two rounds of asking who leads; each is drawn from two thirds to four thirds of it."""
    probe_after_ms: float = 250.0
    """An answer overdue for so long makes a server suspect."""
    move_read_after_ms: float = 1000.0
    """A read that any member may answer goes to another after so long."""
    connect_timeout_ms: float = 1000.0
    """To connect and be greeted: a stopped process accepts connections and says nothing."""
    backoff_ms: float = 5.0
    """First wait after a refusal without `retry_after_ms`; doubled each time."""
    backoff_limit_ms: float = 250.0


class Work(NamedTuple):
    """What the client has to do now, in this order: finish, close, dial, write."""

    completed: list[Request]
    close: list[Link]
    dial: list[Link]
    write: list[Link]


class ClientProtocol:
    """See the module's docstring. Not thread-safe: the blocking client holds a lock around it."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        group: str,
        random: random_module.Random,
        timings: ClientTimings | None = None,
    ) -> None:
        assert servers, "a client needs at least one server"
        self.group = group
        self.timings = timings or ClientTimings()
        self.cluster_id = ""
        self.max_entry_bytes = 0
        """Of the last server that greeted; 0 before."""
        self._random = random
        # Shuffled, so that a thousand clients with one list do not all ask the same server first.
        shuffled = list(servers)
        random.shuffle(shuffled)
        self.view = ClusterView(shuffled, distrust_lost_ms=self.timings.connect_timeout_ms)
        self._links = LinkTable(random)
        self._waiting: dict[Request, None] = {}
        self._streams = OrderedStreams(self)
        self._wrong_group: dict[str, LedgerError] = {}
        self._previous_connection = ""
        """Id of the last connection that broke with appends in flight."""
        self._asked_width = 1
        self._next_ask_ms = 0.0
        self._next_request_id = 1
        self._now = 0.0
        self._ticked_ms = 0.0
        """When `advance` was called last."""
        self._closed = False
        self._completed: list[Request] = []
        self._to_write: dict[Link, None] = {}

    # ---------------------------------------------------------------- what callers ask for

    def submit(self, request: Request, now_ms: float) -> None:
        """Take a request; its outcome is in `Work.completed` of a later `take_work`."""
        self._now = now_ms
        if self._closed:
            self.fail(request, BadRequest("the client is closed"))
        elif request.stream is not None:
            self._streams.submit(request.stream, request)
        else:
            self._dispatch(request)

    def new_stream(self) -> Stream:
        """Any thread may ask for one."""
        return self._streams.new_stream()

    def cancel(self, request: Request, now_ms: float) -> None:
        """Nobody waits for it any more. What has not left never will; what has is only forgotten."""
        self._now = now_ms
        if request.state is RequestState.WAITING:
            self._waiting.pop(request, None)
            self.fail(request, BadRequest("cancelled before it was sent"))
            if request.stream is not None:
                self._streams.fail(request.stream, BadRequest("an earlier batch was cancelled"))

    def close(self, now_ms: float) -> None:
        """End every request and every connection."""
        self._now = now_ms
        self._closed = True
        for request in list(self._waiting):
            self._waiting.pop(request)
            self.fail(request, BadRequest("the client was closed before the request was sent"))
        for link in self._links.all():
            self._drop(link, "the client was closed")
        for stream in list(self._streams.waiting):
            self._streams.fail(stream, BadRequest("the client was closed"))
        assert not self._links.all(), self._links.all()

    # ---------------------------------------------------------------- what the world does

    def advance(self, now_ms: float) -> None:
        """Deadlines, silences, redials. Call at `next_wakeup_ms` at the latest."""
        self._now = self._ticked_ms = now_ms
        self._expire()
        for link in self._links.all():
            self._look_at(link)
        self._route_waiting()
        if self._needs_a_leader():
            self._ask_around()

    def next_wakeup_ms(self) -> float:
        """When `advance` has something to do; infinity while nothing is under way."""
        busy = self._waiting or self._streams.waiting
        if not busy and not self._links.is_busy:
            return float("inf")
        wake = self._ticked_ms + self.timings.tick_ms
        if busy:
            waits = [r.not_before_ms for r in self._waiting] + [
                s.resume_at_ms for s in self._streams.waiting
            ]
            later = [at for at in waits if at > self._now]
            wake = min(wake, *later) if later else wake
        return wake

    def link_connected(self, link: Link, now_ms: float) -> None:
        """The dialled connection stands."""
        self._now = now_ms
        if link.state is LinkState.CLOSED:
            return
        assert link.state is LinkState.DIALING, link.state
        link.state = LinkState.GREETING
        link.since_ms = link.last_received_ms = now_ms
        link.outbox += encode_frame(self.group, Hello(role="client"))
        self._to_write[link] = None

    def link_lost(self, link: Link, reason: str, now_ms: float) -> None:
        """It could not be dialled, broke, was closed by the server, or brought nonsense."""
        self._now = now_ms
        if link.state is not LinkState.CLOSED:
            self._drop(link, reason)

    def frames_received(self, link: Link, frames: Sequence[Frame], now_ms: float) -> None:
        """Answers that came on a link. Nonsense among them closes the link, as a violation does."""
        self._now = now_ms
        try:
            for group, message, payload in frames:
                if link.state is LinkState.CLOSED:
                    return
                link.last_received_ms = now_ms
                if group != self.group or not isinstance(message, ClientMessage):
                    raise ProtocolViolation(f"{type(message).__name__} of group {group!r} at a client")
                if link.state is LinkState.GREETING:
                    self._greeting_answered(link, message)
                    continue
                request = link.pending.pop(message.request_id, None)
                # An answer that came after its deadline is nobody's any more.
                if request is not None:
                    self._answered(link, request, message, payload)
        except ProtocolViolation as violation:
            assert link.state is not LinkState.CLOSED, link.address
            self._drop(link, f"protocol violation: {violation}")

    def take_work(self) -> Work:
        links = self._links
        work = Work(self._completed, links.to_close, links.to_dial, list(self._to_write))
        self._completed = []
        links.to_close = []
        links.to_dial = []
        self._to_write = {}
        return work

    # ---------------------------------------------------------------- where a request goes

    def _dispatch(self, request: Request) -> None:
        """Send it now, or keep it until there is somebody to send it to."""
        assert request.state is RequestState.WAITING, request.state
        link = None if request.not_before_ms > self._now else self._route(request.target, request.lane)
        if link is None:
            self._waiting[request] = None
            if request.target.kind is TargetKind.LEADER:
                self.leader_wanted()
            elif request.target.kind is TargetKind.MEMBER:
                self._fail_if_no_member(request)
                if self.view.member_address(request.target.name) is None:
                    self._ask_around()
        else:
            self._waiting.pop(request, None)
            self.send(link, request)

    def _route_waiting(self) -> None:
        for request in list(self._waiting):
            if request.state is RequestState.WAITING and request.not_before_ms <= self._now:
                link = self._route(request.target, request.lane)
                if link is not None:
                    self._waiting.pop(request, None)
                    self.send(link, request)
        self._streams.pump_waiting()

    def _route(self, target: Target, lane: Lane) -> Link | None:
        """The open link to the target; if there is none it is dialled and None returned."""
        address = self._address_of(target, lane)
        if address is None or self._closed:
            return None
        return self._links.open_or_dial(address, lane, self._now)

    def _address_of(self, target: Target, lane: Lane) -> str | None:
        if target.kind is TargetKind.LEADER:
            return self.view.leader.address if self.view.leader else None
        if target.kind is TargetKind.MEMBER:
            return self.view.member_address(target.name)
        if target.kind is TargetKind.ADDRESS:
            return target.name
        return self._links.best_of(self.view.known_addresses(), lane, self._now)

    def _fail_if_no_member(self, request: Request) -> None:
        name = request.target.name
        if self.view.advertised and self.view.member_address(name) is None:
            known = ", ".join(sorted(self.view.advertised))
            self._waiting.pop(request, None)
            self.fail(request, BadRequest(f"there is no member {name!r}; the members are {known}"))

    def send(self, link: Link, request: Request) -> bool:
        """False if the request failed instead, since it is above the server's limits."""
        assert link.state is LinkState.OPEN, link.state
        assert request.state is RequestState.WAITING, request.state
        assert link.hello is not None
        request_id = self._next_request_id
        self._next_request_id += 1
        try:
            buffers = encode_request(
                self.group,
                request,
                request_id,
                link.hello,
                now_ms=self._now,
                previous_connection=self._previous_connection,
            )
        except BodyTooLarge as error:
            self.fail(request, error)
            return False
        link.outbox += buffers
        link.pending[request_id] = request
        self._to_write[link] = None
        request.state = RequestState.SENT
        wait_ms = request.message.wait_ms if isinstance(request.message, ReadRequest) else 0
        request.due_ms = self._now + wait_ms
        return True

    # ---------------------------------------------------------------- who leads

    @property
    def now_ms(self) -> float:
        return self._now

    def leader_link(self) -> Link | None:
        """The open connection for appends; asked for if there is none."""
        return self._route(LEADER, Lane.CONTROL)

    def leader_wanted(self) -> None:
        """Somebody waits for the leader: if it is not connected, ask who it is."""
        if not self._is_leader_connected():
            self._ask_around()

    def _is_leader_connected(self) -> bool:
        leader = self.view.leader
        return leader is not None and self._links.is_open(leader.address, Lane.CONTROL)

    def _needs_a_leader(self) -> bool:
        """Somebody waits for the leader, or for a member whose address nobody has told yet."""
        if not self._is_leader_connected():
            if self._streams.waiting:
                return True
            if any(r.target.kind is TargetKind.LEADER for r in self._waiting):
                return True
        return any(
            r.target.kind is TargetKind.MEMBER and self.view.member_address(r.target.name) is None
            for r in self._waiting
        )

    def _ask_around(self, *, beside: str = "") -> None:
        """One round of asking who leads; `beside`: a server that is suspect and not to be asked."""
        if self._now < self._next_ask_ms:
            return
        self._next_ask_ms = self._now + self.timings.ask_interval_ms * self._random.uniform(2 / 3, 4 / 3)
        addresses = self.view.known_addresses()
        for address in addresses[: self._asked_width]:
            if address != beside and not self._closed:
                link = self._links.open_or_dial(address, Lane.CONTROL, self._now)
                if link is not None:
                    self._ask_status(link)
        self._asked_width = min(self._asked_width + 1, len(addresses))

    def _ask_status(self, link: Link) -> None:
        if link.probe is None:
            link.probe = Request(
                StatusRequest(),
                Target(TargetKind.ADDRESS, link.address),
                now_ms=self._now,
                deadline_ms=float("inf"),
            )
            self.send(link, link.probe)

    def _learn(self, link: Link, status: StatusResponse) -> None:
        self._wrong_group.pop(link.address, None)
        self.view.learn(link.address, status)
        for request in list(self._waiting):
            if request.target.kind is TargetKind.MEMBER:
                self._fail_if_no_member(request)
        self._route_waiting()

    # ---------------------------------------------------------------- answers

    def _greeting_answered(self, link: Link, message: ClientMessage) -> None:
        if isinstance(message, ErrorResponse):
            message = HelloResponse(code=message.code, message=message.message)
        if not isinstance(message, HelloResponse):
            raise ProtocolViolation(f"{type(message).__name__} instead of a greeting")
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
        self.max_entry_bytes = message.max_entry_bytes
        link.hello = message
        self._links.greeted(link, self._now)
        self.view.notes.pop(link.address, None)
        if message.member_id:
            self.view.greeted[message.member_id] = link.address
        if link.lane is Lane.CONTROL:
            self._ask_status(link)
        self._route_waiting()

    def _answered(
        self, link: Link, request: Request, message: ClientMessage, payload: EntryBatch | None
    ) -> None:
        if request is link.probe:
            link.probe = None
            request.state = RequestState.DONE
            if isinstance(message, StatusResponse):
                self._learn(link, message)
            elif isinstance(message, ErrorResponse):
                self._turned_away(link, error_of(message))
            return
        request.answered_on = link
        if isinstance(message, ErrorResponse):
            self._refused(link, request, error_of(message))
            return
        problem = _problem_of(request, message)
        if problem:
            # The request is still unanswered: the link goes down and decides it with the others.
            link.pending[message.request_id] = request
            raise ProtocolViolation(problem)
        if isinstance(message, AppendResponse):
            self.view.committed(link.address, message.term)
        elif isinstance(message, StatusResponse):
            self._learn(link, message)
        request.response = message
        request.response_payload = payload
        self._finish(request)
        if request.stream is not None:
            self._streams.committed(request.stream)

    def _refused(self, link: Link, request: Request, error: LedgerError) -> None:
        """The server said no, or that it does not know."""
        self.view.notes[link.address] = f"{type(error).__name__}: {error}"
        if isinstance(error, (NotLeader, LeaderNotReady)):
            self.view.hinted(link.address, error, self._now)
        request.refusal = error
        request.attempts += 1
        if request.stream is not None:
            self._streams.refused(request.stream, request, error)
        elif isinstance(error, Refused) and error.retriable:
            request.state = RequestState.WAITING
            request.not_before_ms = self._now + self.backoff_ms(error, request.attempts)
            self._dispatch(request)
        else:
            self.fail(request, error)

    def backoff_ms(self, error: LedgerError | None, attempts: int) -> float:
        """Milliseconds until the next attempt, between half and the whole of what is due."""
        if isinstance(error, NotLeader) and self.view.leader is not None and attempts <= 2:
            return 0.0
        timings = self.timings
        wait = timings.backoff_ms * (1 << min(attempts - 1, 10))
        if error is not None and error.retry_after_ms > 0:
            wait = max(wait, error.retry_after_ms)
        return min(wait, timings.backoff_limit_ms) * self._random.uniform(0.5, 1.0)

    # ---------------------------------------------------------------- what goes wrong

    def _drop(self, link: Link, reason: str) -> None:
        """The link is gone; what was in flight on it has the outcome that its kind demands."""
        was_open = link.state is LinkState.OPEN
        address = link.address
        self._links.remove(link, self._now)
        self._to_write.pop(link, None)
        self.view.notes[address] = reason
        if self.view.is_leader(address):
            # The others are asked even if only a read was lost: the process may be gone.
            self._asked_width = len(self.view.known_addresses())
            self._next_ask_ms = 0.0
            if link.lane is Lane.CONTROL:
                self.view.connection_lost(address, self._now)
        if not was_open:
            self._asked_width += 1
            self._next_ask_ms = 0.0
        pending = list(link.pending.values())
        link.pending.clear()
        for request in pending:
            if request is not link.probe:
                self._interrupted(link, request, reason)
        link.probe = None
        if not was_open:
            self._fail_addressed(address, reason)
        for request in [r for r in pending if r.state is RequestState.WAITING and r.stream is None]:
            self._dispatch(request)
        if self._needs_a_leader():
            self._ask_around()

    def _interrupted(self, link: Link, request: Request, reason: str) -> None:
        if request.is_repeatable:
            request.state = RequestState.WAITING
            request.attempts += 1
            return
        assert link.hello is not None
        error = OutcomeUnknown(
            f"the connection to {link.address} ended ({reason}) with the request in flight: it may or"
            " may not have been carried out"
        )
        if isinstance(request.message, AppendRequest):
            self._previous_connection = link.hello.connection_id
        self.fail(request, error)
        if request.stream is not None:
            self._streams.unanswered(request.stream, error)

    def _fail_addressed(self, address: str, reason: str) -> None:
        """Who asks one address wants to know that it is down, not to wait until it is up."""
        for request in list(self._waiting):
            if request.target == (TargetKind.ADDRESS, address):
                self._waiting.pop(request)
                self.fail(request, Unreachable(f"{address}: {reason}"))

    def _turned_away(self, link: Link, refusal: LedgerError) -> None:
        """The server wants nothing to do with us; if all say "unknown group" no time will help."""
        if isinstance(refusal, UnknownGroup):
            self._wrong_group[link.address] = refusal
        self._drop(link, f"turned this client away: {refusal}")
        if all(address in self._wrong_group for address in self.view.known_addresses()):
            error = next(iter(self._wrong_group.values()))
            for request in list(self._waiting):
                self._waiting.pop(request)
                self.fail(request, error)
            for stream in list(self._streams.waiting):
                self._streams.fail(stream, error)

    def _look_at(self, link: Link) -> None:
        """One link on one tick: not answering at all, or owing an answer for too long?"""
        timings = self.timings
        if link.state in (LinkState.DIALING, LinkState.GREETING):
            if self._now - link.since_ms > timings.connect_timeout_ms:
                verb = "connection" if link.state is LinkState.DIALING else "greeting"
                self._drop(link, f"no {verb} within {timings.connect_timeout_ms:.0f} ms")
            return
        silent_ms = link.silent_ms(self._now)
        if link.state is not LinkState.OPEN or silent_ms <= timings.probe_after_ms:
            return
        self._ask_status(link)
        self._asked_width = len(self.view.known_addresses())
        self._ask_around(beside=link.address)
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
            self._links.rest(link.address, self._now + timings.connect_timeout_ms)
        elif not requests and silent_ms > 4 * timings.connect_timeout_ms:
            # Nobody needs it, and an idle client should not tick for ever because of a dead machine.
            self._drop(link, f"silent for {silent_ms:.0f} ms")

    def _expire(self) -> None:
        for request in [r for r in self._waiting if r.deadline_ms <= self._now]:
            self._waiting.pop(request)
            self.fail(request, self._too_late(request))
        self._streams.expire(self._too_late)
        for link in self._links.all():
            late = [i for i, r in link.pending.items() if r.deadline_ms <= self._now]
            for request_id in late:
                request = link.pending.pop(request_id)
                after = f"{link.address} did not answer within {self._waited(request)}"
                error: LedgerError = (
                    RequestTimeout(f"{after}; tried: {self._tried()}")
                    if request.is_repeatable
                    else OutcomeUnknown(f"{after}: it may or may not have been carried out")
                )
                self.fail(request, error)
                if request.stream is not None:
                    self._streams.unanswered(request.stream, error)

    def _too_late(self, request: Request) -> LedgerError:
        """Never carried out, and the deadline is here: why, and who was tried."""
        refusal = request.refusal
        tried = f"gave up after {self._waited(request)}; tried: {self._tried()}"
        if refusal is not None and not isinstance(refusal, OutOfSequence):
            error = type(refusal)(f"{refusal} ({tried})")
            error.leader_id, error.leader_address = refusal.leader_id, refusal.leader_address
            return error
        if not any(link.hello is not None for link in self._links.all()):
            return Unreachable(f"no server could be reached: {tried}")
        return RequestTimeout(f"no leader was found: {tried}")

    def _waited(self, request: Request) -> str:
        return f"{(self._now - request.submitted_ms) / 1000:.1f} s"

    def _tried(self) -> str:
        return ", ".join(
            f"{address} ({self.view.notes.get(address, self._links.describe(address))})"
            for address in self.view.known_addresses()
        )

    # ---------------------------------------------------------------- outcomes

    def fail(self, request: Request, error: LedgerError) -> None:
        request.error = error
        self._finish(request)

    def _finish(self, request: Request) -> None:
        assert request.state is not RequestState.DONE, (request.message, request.error)
        request.state = RequestState.DONE
        self._completed.append(request)


def _problem_of(request: Request, message: ClientMessage) -> str:
    """Why no correct server would answer this request so; empty if one may."""
    if type(message) is not _RESPONSE_OF[type(request.message)]:
        return f"{type(message).__name__} as the answer to {type(request.message).__name__}"
    if isinstance(message, AppendResponse):
        if message.count != request.record_count or message.first_index < 0:
            return f"an append of {request.record_count} entries was answered with {message}"
        if message.durability not in Durability.__members__.values():
            return f"unknown durability {message.durability!r}"
    return ""


def receipt_of(request: Request) -> AppendReceipt:
    """The receipt of a finished append, or its error raised."""
    if request.error is not None:
        raise request.error
    response = request.response
    assert isinstance(response, AppendResponse), response
    return AppendReceipt(
        response.term, response.first_index, response.count, Durability(response.durability)
    )
