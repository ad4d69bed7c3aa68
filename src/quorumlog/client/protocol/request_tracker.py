"""RequestTracker: every request of a client from its submission to its outcome.

A request waits until there is somebody to send it to; then it is sent, and what becomes of it is told
by an answer, by the end of its connection or by its deadline:

    committed, answered      done
    refused                  sent again inside its deadline: a refusal proves that nothing was written
    no answer, repeatable    sent again
    no answer, otherwise     unknown, and never sent again: it may be in the log
"""

from __future__ import annotations

import itertools
from random import Random

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import (
    LEADER,
    Lane,
    Link,
    LinkState,
    Request,
    RequestState,
    TargetKind,
)
from quorumlog.client.protocol.client_timings import ClientTimings
from quorumlog.client.protocol.cluster_view import ClusterView, EventKind, GroupEvent
from quorumlog.client.protocol.link_table import LinkTable
from quorumlog.client.protocol.order.ordered_streams import OrderedStreams
from quorumlog.client.protocol.order.producer_session import ProducerSession
from quorumlog.client.protocol.request_encoding import encode_request
from quorumlog.client.protocol.request_router import RequestRouter
from quorumlog.entry import Durability
from quorumlog.errors import (
    BadRequest,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    NotCaughtUp,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    ProtocolViolation,
    Refused,
    RequestTimeout,
    TooStale,
    Unreachable,
)
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.wire.client_messages import (
    RESPONSE_OF,
    AnyClientMessage,
    AppendRequest,
    AppendResponse,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    StatusResponse,
)

HINTS = 2
"""So many are followed at once; then whoever is known is asked who leads, too."""
_OF_ONE_MEMBER = (TooStale, NotCaughtUp, NotLeader, LeaderNotReady)


class RequestTracker:
    def __init__(
        self,
        group: str,
        view: ClusterView,
        links: LinkTable,
        timings: ClientTimings,
        random: Random,
    ) -> None:
        self._group = group
        self._view = view
        self._links = links
        self._timings = timings
        self._random = random
        self.now_ms = 0.0
        """Set by the protocol with each input."""
        self.router = RequestRouter(view, links, timings, random, self.send)
        self.streams = OrderedStreams(self)
        self.session: ProducerSession | None = None
        """Of a client that has a producer's id."""
        self._waiting: dict[Request, None] = {}
        """WAITING requests that are of no stream."""
        self.completed: list[Request] = []
        self.events: list[GroupEvent] = []
        self._previous_connection = ""
        """Id of the last connection that broke with appends in flight."""
        self._request_ids = itertools.count(1)

    # ---------------------------------------------------------------- until it is sent

    def dispatch(self, request: Request) -> None:
        """Send it now, or keep it until there is somebody to send it to."""
        if self._try_to_send(request):
            return
        self._waiting[request] = None
        if request.target.kind is TargetKind.LEADER:
            self.leader_wanted()
        elif request.target.kind is TargetKind.MEMBER:
            self._fail_if_no_member(request)
            if self._view.member_address(request.target.name) is None:
                self.router.ask_around(self.now_ms)

    @property
    def only_looks(self) -> bool:
        """Whoever waits asks how members are."""
        waiting = [*self._waiting, *self.streams.waiting]
        return bool(waiting) and all(
            isinstance(each, Request) and isinstance(each.message, StatusRequest) for each in waiting
        )

    def send_waiting(self) -> None:
        """Called when a leader or a member is known, a link is open, or time has passed."""
        for request in list(self._waiting):
            if request.state is RequestState.WAITING:
                self._try_to_send(request)
        self.streams.pump_waiting()
        if self.session is not None:
            self.session.pump()

    def _try_to_send(self, request: Request) -> bool:
        """False while it backs off, or there is nobody to send it to."""
        if request.not_before_ms > self.now_ms:
            return False
        link = self.router.link_to(request.target, request.lane, self.now_ms)
        if link is None:
            return False
        self._waiting.pop(request, None)
        self.send(link, request)
        return True

    def send(self, link: Link, request: Request) -> bool:
        """False if the request failed instead: it is above the server's limits, cannot be encoded, or
        has no time left."""
        assert link.state is LinkState.OPEN, link.state
        assert request.state is RequestState.WAITING, request.state
        assert link.hello is not None
        if request.deadline_ms <= self.now_ms and not request.is_repeatable:
            # Nobody would wait for the answer: what is certainly not written would become unknown.
            self.fail(request, self._too_late(request))
            return False
        request_id = next(self._request_ids)
        try:
            buffers = encode_request(
                self._group,
                request,
                request_id,
                link.hello,
                now_ms=self.now_ms,
                previous_connection=self._previous_connection,
            )
        except Refused as error:
            self.fail(request, error)
            return False
        except Exception as error:
            # This request alone: others share the link, and whoever waits for it must hear of it.
            refusal = BadRequest(f"the request cannot be encoded: {error!r}")
            refusal.__cause__ = error
            self.fail(request, refusal)
            return False
        link.outbox += buffers
        link.pending[request_id] = request
        self._links.to_write[link] = None
        request.state = RequestState.SENT
        wait_ms = request.message.wait_ms if isinstance(request.message, ReadRequest) else 0
        request.due_ms = self.now_ms + wait_ms
        return True

    def leader_link(self) -> Link | None:
        """The open connection for appends; dialled if there is none."""
        return self.router.link_to(LEADER, Lane.CONTROL, self.now_ms)

    def leader_wanted(self) -> None:
        if not self.router.is_leader_connected:
            self.router.ask_around(self.now_ms)

    def seek(self) -> None:
        """Ask around if somebody waits for the leader, or for a member that nobody has told of yet."""
        if self._is_leader_missed() or any(
            r.target.kind is TargetKind.MEMBER and self._view.member_address(r.target.name) is None
            for r in self._waiting
        ):
            self.router.ask_around(self.now_ms)

    def _is_leader_missed(self) -> bool:
        if self.router.is_leader_connected:
            return False
        in_session = self.session is not None and self.session.is_waiting
        return (
            in_session
            or bool(self.streams.waiting)
            or any(r.target.kind is TargetKind.LEADER for r in self._waiting)
        )

    def resume_times_ms(self) -> list[float]:
        """For each request and stream that waits: until when it backs off."""
        times_ms = [r.not_before_ms for r in self._waiting]
        times_ms += [s.resume_at_ms for s in self.streams.waiting]
        if self.session is not None and self.session.is_waiting:
            times_ms.append(self.session.resume_at_ms)
        return times_ms

    def cancel(self, request: Request) -> None:
        if request.state is RequestState.WAITING:
            cancelled: LedgerError = BadRequest("cancelled before it was sent")
            if request.may_be_in_log:
                cancelled = OutcomeUnknown("cancelled before it was known whether it is in the log")
            self.fail(request, cancelled)
            if request.in_session:
                self._session.cancelled(request)
            elif request.stream is not None:
                self.streams.fail(request.stream, BadRequest("an earlier batch was cancelled"))
        elif request.state is RequestState.SENT and request.is_repeatable:
            for link in self._links.all():
                for request_id in [i for i, r in link.pending.items() if r is request]:
                    del link.pending[request_id]  # its answer will be nobody's
            self.fail(request, BadRequest("cancelled before it was answered"))
            if request.in_session:
                self._session.abandoned(request)

    # ---------------------------------------------------------------- answers

    def answered(
        self,
        link: Link,
        request: Request,
        message: ErrorResponse | AnyClientMessage,
        batch: EntryBatch | None,
    ) -> None:
        """Raises ProtocolViolation for an answer to something else; the request is pending again."""
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
            self._view.committed(link.address, message.term)
            if not request.may_be_old:
                self._look_back(link, request, message.first_index - 1)
            self._view.written(message)
        elif isinstance(message, ReadResponse):
            self._look_at_end(link, request, message)
        elif isinstance(message, StatusResponse):
            self.learn(link, message)
        request.response = message
        request.response_batch = batch
        self._finish(request)
        if request.in_session:
            self._session.answered(request)
        elif request.stream is not None:
            self.streams.committed(request.stream)

    def _look_at_end(self, link: Link, request: Request, told: ReadResponse | IndexOutOfRange) -> None:
        asked = request.message
        is_confirmed = (
            isinstance(asked, ReadRequest)
            and asked.to_end
            and not (asked.wait_ms or asked.promise)
            and request.target.kind is TargetKind.LEADER
        )
        if is_confirmed:
            self._look_back(link, request, told.committed_index)
        self._view.saw(told.committed_index)

    def _look_back(self, link: Link, request: Request, index: int) -> None:
        """When this request was submitted, nothing was committed behind this entry."""
        if index < request.seen_index and index < self._view.seen_index:
            reason = f"entry {request.seen_index} was, and now the log goes on behind entry {index}"
            self.events.append(GroupEvent(EventKind.SET_BACK, link.address, reason))
            self._view.set_back(index)

    def learn(self, link: Link, status: StatusResponse) -> None:
        """Who leads and which members there are, which is what some wait for."""
        self._view.learn(link.address, status, self.now_ms)
        for request in list(self._waiting):
            if request.target.kind is TargetKind.MEMBER:
                self._fail_if_no_member(request)
        self.send_waiting()

    def _refused(self, link: Link, request: Request, error: LedgerError) -> None:
        is_to_pass = isinstance(error, Refused) and error.retriable
        if is_to_pass:  # another one is an answer to this request, and says nothing of the server
            self._view.note(link.address, f"{type(error).__name__}: {error}", self.now_ms)
        if isinstance(error, IndexOutOfRange):
            self._look_at_end(link, request, error)
        if isinstance(error, (NotLeader, LeaderNotReady)):
            self._view.hinted(link.address, error, self.now_ms)
        request.refusal = error
        request.attempts += 1
        if isinstance(error, NotLeader) and request.attempts > HINTS:
            # Two that are connected may each name the other: one has not heard of the leader that the
            # other takes for a directory of the first one's name.
            self.router.ask_around(self.now_ms)
        if request.in_session:
            self._session.refused(request, error)
        elif request.stream is not None:
            self.streams.refused(request.stream, request, error)
        elif is_to_pass:
            request.state = RequestState.WAITING
            wait_ms = self.backoff_ms(error, request.attempts)
            if request.target.kind is TargetKind.ANY and isinstance(error, _OF_ONE_MEMBER):
                # Another one may be able to, perhaps one that is to be asked for first: before this one
                # rests. When all have refused, they are asked again.
                self.router.ask_around(self.now_ms)
                self._links.rest(link.address, self.now_ms + wait_ms)
                wait_ms = 0.0
            request.not_before_ms = self.now_ms + wait_ms
            self.dispatch(request)
        else:
            self.fail(request, error)

    def backoff_ms(self, error: LedgerError | None, attempts: int) -> float:
        """Until the next attempt: between half and the whole of what is due."""
        if isinstance(error, NotLeader) and self._view.leader is not None and attempts <= HINTS:
            return 0.0
        timings = self._timings
        wait = timings.backoff_ms * (1 << min(attempts - 1, 10))
        if error is not None and error.retry_after_ms > 0:
            wait = max(wait, error.retry_after_ms)
        return min(wait, timings.backoff_limit_ms) * self._random.uniform(0.5, 1.0)

    # ---------------------------------------------------------------- no answer

    def connection_ended(self, link: Link, reason: str, *, was_open: bool) -> None:
        pending = [request for request in link.pending.values() if request is not link.probe]
        link.pending.clear()
        link.probe = None
        for request in pending:
            self._interrupted(link, request, reason)
        if not was_open:
            self._fail_addressed(link.address, reason)
        for request in pending:
            is_alone = request.stream is None and not request.in_session
            if request.state is RequestState.WAITING and is_alone:
                self.dispatch(request)
        if self.session is not None:
            self.session.pump()
        self.seek()

    def _interrupted(self, link: Link, request: Request, reason: str) -> None:
        if request.in_session:
            request.attempts += 1
            self._session.interrupted(request)
            return
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
            self.streams.unanswered(request.stream, error)

    def expire(self) -> None:
        for request in [r for r in self._waiting if r.deadline_ms <= self.now_ms]:
            self.fail(request, self._too_late(request))
        self.streams.expire(self._too_late)
        if self.session is not None:
            self.session.expire(self._too_late)
        for link in self._links.all():
            late = [i for i, r in link.pending.items() if r.is_late(link, self.now_ms)]
            for request_id in late:
                request = link.pending.pop(request_id)
                after = f"{link.address} did not answer within {self._waited(request)}"
                error: LedgerError = (
                    RequestTimeout(f"{after}; tried: {self._tried(request)}")
                    if request.is_repeatable
                    else OutcomeUnknown(f"{after}: it may or may not have been carried out")
                )
                self.fail(request, error)
                if request.in_session:
                    self._session.abandoned(request)
                elif request.stream is not None:
                    self.streams.unanswered(request.stream, error)

    def _too_late(self, request: Request) -> LedgerError:
        """Why it was never carried out, and who was tried."""
        refusal = request.refusal
        tried = f"gave up after {self._waited(request)}; tried: {self._tried(request)}"
        if refusal is not None and not isinstance(refusal, OutOfSequence):
            error = type(refusal).__new__(type(refusal), f"{refusal} ({tried})")
            error.__dict__.update(refusal.__dict__)  # who leads, which sequence is expected
            return error
        if not any(link.hello is not None for link in self._links.all()):
            return Unreachable(f"no server could be reached: {tried}")
        missed = "no time was left" if self.router.is_leader_connected else "no leader was found"
        return RequestTimeout(f"{missed}: {tried}")

    def _waited(self, request: Request) -> str:
        return f"{(self.now_ms - request.submitted_ms) / 1000:.1f} s"

    def _tried(self, request: Request) -> str:
        addresses = self._view.known_addresses()
        return ", ".join(f"{address} ({self._met(address, request)})" for address in addresses)

    def _met(self, address: str, request: Request) -> str:
        """What went wrong there. Others use the client, too: what they met may have passed since."""
        note = self._view.notes.get(address)
        if note is None:
            return self._links.describe(address)
        if note.at_ms >= request.submitted_ms:
            return note.what
        before_s = (request.submitted_ms - note.at_ms) / 1000
        return f"{self._links.describe(address)}; {before_s:.1f} s before: {note.what}"

    # ---------------------------------------------------------------- failures

    def fail_waiting(self, error: LedgerError) -> None:
        """Those of no stream."""
        for request in list(self._waiting):
            self.fail(request, error)

    def fail_waiting_streams(self, error: LedgerError) -> None:
        for stream in list(self.streams.waiting):
            self.streams.fail(stream, error)
        if self.session is not None:
            self.session.fail_all(error)

    def _fail_addressed(self, address: str, reason: str) -> None:
        """Who asks one address hears that it is down, and does not wait until it is up."""
        for request in list(self._waiting):
            if request.target == (TargetKind.ADDRESS, address):
                self.fail(request, Unreachable(f"{address}: {reason}"))

    def _fail_if_no_member(self, request: Request) -> None:
        name = request.target.name
        if self._view.advertised and self._view.member_address(name) is None:
            known = ", ".join(sorted(self._view.advertised))
            self.fail(request, BadRequest(f"there is no member {name!r}; the members are {known}"))

    def fail(self, request: Request, error: LedgerError) -> None:
        self._waiting.pop(request, None)
        request.error = error
        self._finish(request)

    def _finish(self, request: Request) -> None:
        assert request.state is not RequestState.DONE, (request.message, request.error)
        request.state = RequestState.DONE
        if self.session is not None and self.session.is_opening(request):
            self.session.opened(request)
        else:
            self.completed.append(request)

    @property
    def _session(self) -> ProducerSession:
        assert self.session is not None
        return self.session


def _problem_of(request: Request, message: AnyClientMessage) -> str:
    """Why no correct server would answer this request so; empty if one may."""
    if type(message) is not RESPONSE_OF[type(request.message)]:
        return f"{type(message).__name__} as the answer to {type(request.message).__name__}"
    if isinstance(message, AppendResponse):
        if message.count != request.record_count or message.first_index < 0:
            return f"an append of {request.record_count} entries was answered with {message}"
        if message.durability not in Durability.__members__.values():
            return f"unknown durability {message.durability!r}"
    return ""
