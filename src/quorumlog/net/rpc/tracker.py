"""CallTracker: every call of a client from its submission to its outcome.

A call waits until there is a server to send it to, and is sent. Its outcome follows from an answer, the
end of its connection, or its deadline:

    committed, answered      done
    refused                  sent again inside its deadline: a refusal proves that nothing was written
    no answer, repeatable    sent again
    no answer, otherwise     unknown, and never sent again: it may be in the log
"""

from __future__ import annotations

import itertools
from random import Random

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.errors import (
    AlreadyCommitted,
    BadRequest,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    ProtocolViolation,
    Refused,
    RequestTimeout,
    Unreachable,
)
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import encode_frame
from quorumlog.net.rpc.calls import (
    LEADER,
    Call,
    CallState,
    Lane,
    Link,
    LinkState,
    Order,
    TargetKind,
)
from quorumlog.net.rpc.link_table import LinkTable
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.router import Router
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.rpc.view import GroupEvent, GroupView, ServerView
from quorumlog.wire.client_message import ClientMessage

HINTS = 2
"""Hints followed at once; after that many every known member is asked for the leader, too."""


class CallTracker:
    def __init__(
        self,
        product: Product,
        view: GroupView,
        links: LinkTable,
        timings: Timings,
        random: Random,
    ) -> None:
        self._product = product
        self._view = view
        self._links = links
        self._timings = timings
        self._random = random
        self.now_ms = 0.0
        """The current time, set by the protocol with each input."""
        self.router = Router(view, links, timings, random, product.probe, self.send)
        self.orders: list[Order] = []
        self._waiting: dict[Call, None] = {}
        """WAITING calls that belong to no order."""
        self.completed: list[Call] = []
        self.events: list[GroupEvent] = []
        self._request_ids = itertools.count(1)

    # ---------------------------------------------------------------- until it is sent

    def dispatch(self, call: Call) -> None:
        """Send a call now, or keep it until there is a server to send it to."""
        if self._try_to_send(call):
            return
        self._waiting[call] = None
        if call.target.kind is TargetKind.LEADER:
            self.leader_wanted()
        elif call.target.kind is TargetKind.MEMBER:
            self._fail_if_no_member(call)
            if self._view.member_address(call.target.name) is None:
                self.router.ask_around(self.now_ms)

    @property
    def only_looks(self) -> bool:
        """True if the waiting calls request only status."""
        return (
            bool(self._waiting)
            and all(self._product.looks(call.message) for call in self._waiting)
            and not any(order.is_waiting for order in self.orders)
        )

    def send_waiting(self) -> None:
        """Called when a leader or a member is known, a link is open, or time has passed."""
        for call in list(self._waiting):
            if call.state is CallState.WAITING:
                self._try_to_send(call)
        for order in self.orders:
            order.pump()

    def _try_to_send(self, call: Call) -> bool:
        """False while the call backs off, or there is no server to send it to."""
        if call.not_before_ms > self.now_ms:
            return False
        link = self.router.link_to(call.target, call.lane, self.now_ms)
        if link is None:
            return False
        self._waiting.pop(call, None)
        self.send(link, call)
        return True

    def send(self, link: Link, call: Call) -> bool:
        """Send a call. False if it failed: it is above the server's limits, cannot be encoded, or has
        no time left."""
        assert link.state is LinkState.OPEN, link.state
        assert call.state is CallState.WAITING, call.state
        assert link.hello is not None
        if call.deadline_ms <= self.now_ms and call.changes:
            # Nobody would wait for the answer: what is certainly not written would become unknown.
            self.fail(call, self._too_late(call))
            return False
        request_id = next(self._request_ids)
        try:
            buffers = self._product.encode(link, call, request_id, self.now_ms)
        except Refused as error:
            self.fail(call, error)
            return False
        except Exception as error:
            # This call alone: others share the link, and its caller must hear of it.
            refusal = BadRequest(f"the request cannot be encoded: {error!r}")
            refusal.__cause__ = error
            self.fail(call, refusal)
            return False
        link.outbox += buffers
        link.pending[request_id] = call
        self._links.to_write[link] = None
        call.state, call.sent_on, call.request_id = CallState.SENT, link, request_id
        call.due_ms = self.now_ms + call.wait_ms
        return True

    def leader_link(self) -> Link | None:
        """The open connection for appends; dialled if there is none."""
        return self.router.link_to(LEADER, Lane.CONTROL, self.now_ms)

    def leader_wanted(self) -> None:
        if not self.router.is_leader_connected:
            self.router.ask_around(self.now_ms)

    def seek(self) -> None:
        """Ask around if a call waits for the leader, or for a member not yet known."""
        if self._is_leader_missed() or any(
            r.target.kind is TargetKind.MEMBER and self._view.member_address(r.target.name) is None
            for r in self._waiting
        ):
            self.router.ask_around(self.now_ms)

    def _is_leader_missed(self) -> bool:
        if self.router.is_leader_connected:
            return False
        return any(order.is_waiting for order in self.orders) or any(
            call.target.kind is TargetKind.LEADER for call in self._waiting
        )

    def resume_times_ms(self) -> list[float]:
        """The end of the back-off of each waiting call."""
        times_ms = [call.not_before_ms for call in self._waiting] if self._waiting else []
        for order in self.orders:
            times_ms += order.resume_times_ms()
        return times_ms

    def cancel(self, call: Call) -> None:
        if call.state is CallState.WAITING:
            cancelled: LedgerError = BadRequest("cancelled before it was sent")
            if call.may_be_done:
                cancelled = OutcomeUnknown("cancelled before it was known whether it is in the log")
            self.fail(call, cancelled)
            if call.order is not None:
                call.order.cancelled(call)
        elif call.state is CallState.SENT and not call.changes:
            link = call.sent_on
            assert link is not None
            self._forget(link, call)
            self.fail(call, BadRequest("cancelled before it was answered"))
            if call.order is not None:
                call.order.unanswered(call)

    # ---------------------------------------------------------------- answers

    def answered(self, link: Link, call: Call, message: ClientMessage, batch: EntryBatch | None) -> None:
        """Handle an answer. Raises ProtocolViolation if it is not of the call's kind; the call is
        pending again."""
        call.answered_on = link
        if isinstance(message, ErrorResponse):
            self._refused(link, call, message)
            return
        try:
            if call.on_message is not None:
                self._began(link, call, message)
                return
            reported = self._product.answered(link, call, message, batch)
        except ProtocolViolation:
            # The call is still unanswered: the link goes down and decides it with the others.
            link.watches.pop(message.request_id, None)
            link.pending[message.request_id] = call
            raise
        call.response = message
        call.response_batch = batch
        if reported is not None:
            self.learn(link, reported)
        self._finish(call)
        if call.order is not None:
            call.order.answered(call)

    def _began(self, link: Link, watch: Call, message: ClientMessage) -> None:
        assert watch.on_message is not None
        link.watches[message.request_id] = watch
        watch.on_message(message)
        watch.attempts = 0
        watch.deadline_ms = float("inf")

    def learn(self, link: Link, reported: ServerView) -> None:
        """Learn the leader and the members; calls may wait for that."""
        self._view.learn(link.address, reported, self.now_ms)
        for call in list(self._waiting):
            if call.target.kind is TargetKind.MEMBER:
                self._fail_if_no_member(call)
        if reported.leader_id and self._view.leader is None:
            self.router.ask_all(self.now_ms)  # nobody has said yet where that is
        self.send_waiting()

    def _forget(self, link: Link, call: Call) -> None:
        """Stop tracking a sent call; later messages for it are ignored."""
        request_id = call.request_id
        if link.watches.pop(request_id, None) is None:
            del link.pending[request_id]
        ends = None if call.on_message is None else self._product.cancel(request_id)
        if ends is not None:
            link.outbox += encode_frame(self._product.group, ends)
            self._links.to_write[link] = None

    def _refused(self, link: Link, call: Call, response: ErrorResponse) -> None:
        error = error_of(response)
        self._product.refused(link, call, error)
        may_repeat = not call.is_once or (isinstance(error, LeaderNotReady) and not call.changes)
        may_repeat |= isinstance(error, Overloaded) and error.retry_after_ms > 0
        # As without an answer. What is more exact would come again (of a result too large, say), and so
        # would the code of a newer server, which counts as OutcomeUnknown here.
        is_unknown = response.code == OutcomeUnknown.code
        may_pass = error.retriable or error.is_elsewhere or (is_unknown and not call.changes)
        is_to_pass = may_pass and may_repeat
        if call.is_numbered and isinstance(error, OutcomeUnknown):
            call.may_be_done = is_to_pass = True  # sent again, it is told
        if is_to_pass:  # another one is an answer to this call, and says nothing of the server
            self._view.note(link.address, f"{type(error).__name__}: {error}", self.now_ms)
        if error.is_elsewhere and call.target.kind is TargetKind.LEADER:
            self._view.hinted(link.address, error, self.now_ms)
        call.refusal = error
        call.attempts += 1
        if isinstance(error, NotLeader) and call.attempts > HINTS:
            # Two that are connected may each name the other: one has not heard of the leader that the
            # other takes for a directory of the first one's name.
            self.router.ask_around(self.now_ms)
        if call.order is not None:
            call.order.refused(call, error)
        elif is_to_pass:
            call.state = CallState.WAITING
            wait_ms = self.backoff_ms(error, call.attempts)
            if call.target.kind is TargetKind.ANY and error.is_elsewhere:
                # Another one may be able to, perhaps one that is to be asked for first: before this one
                # rests. When all have refused, they are asked again.
                self.router.ask_around(self.now_ms)
                self._links.rest(link.address, self.now_ms + wait_ms)
                wait_ms = 0.0
            call.not_before_ms = self.now_ms + wait_ms
            self.dispatch(call)
        else:
            self.fail(call, error)

    def backoff_ms(self, error: LedgerError | None, attempts: int) -> float:
        """Milliseconds until the next attempt: half to all of the back-off that is due, or the whole
        time that an overloaded server names."""
        if isinstance(error, NotLeader) and self._view.leader is not None and attempts <= HINTS:
            return 0.0
        timings = self._timings
        wait = timings.backoff_ms * (1 << min(attempts - 1, 10))
        asked_ms = 0 if error is None else error.retry_after_ms
        wait = min(max(wait, asked_ms), timings.backoff_limit_ms) * self._random.uniform(0.5, 1.0)
        if isinstance(error, Overloaded):
            wait = max(wait, asked_ms * self._random.uniform(1.0, 1.2))
        return wait

    # ---------------------------------------------------------------- no answer

    def connection_ended(self, link: Link, reason: str, *, was_open: bool) -> None:
        pending = [call for call in link.pending.values() if call is not link.probe]
        pending += link.watches.values()
        link.pending.clear()
        link.watches.clear()
        link.probe = None
        for call in pending:
            self._interrupted(link, call, reason)
        if not was_open and not link.is_greeted_again:
            self._fail_addressed(link.address, reason)
        for call in pending:
            if call.state is CallState.WAITING and call.order is None:
                self.dispatch(call)
        for order in self.orders:
            order.pump()
        self.seek()

    def _interrupted(self, link: Link, call: Call, reason: str) -> None:
        call.attempts += 1
        if call.order is not None:
            if call.order.interrupted(call):
                return
        elif problem := _unreadable(call.message):
            self.fail(call, BadRequest(f"no server can read the request: {problem}"))
            return
        elif not call.changes or call.is_numbered:
            call.may_be_done |= call.changes
            call.state = CallState.WAITING
            return
        self._product.unanswered(link, call)
        error = OutcomeUnknown(
            f"the connection to {link.address} ended ({reason}) with the request in flight: it may or"
            " may not have been carried out"
        )
        self.fail(call, error)
        if call.order is not None:
            call.order.unanswered(call)

    def expire(self) -> None:
        for call in [r for r in self._waiting if r.deadline_ms <= self.now_ms]:
            self.fail(call, self._too_late(call))
        for order in self.orders:
            order.expire(self._too_late)
        for link in self._links.all():
            for call in [r for r in link.pending.values() if r.is_late(link, self.now_ms)]:
                self._forget(link, call)
                after = f"{link.address} did not answer within {self._waited(call)}"
                error: LedgerError = (
                    RequestTimeout(f"{after}; tried: {self._tried(call)}")
                    if not call.changes
                    else OutcomeUnknown(f"{after}: it may or may not have been carried out")
                )
                self.fail(call, error)
                if call.order is not None:
                    call.order.unanswered(call)

    def _too_late(self, call: Call) -> LedgerError:
        """The error of a call that was never executed, with the servers that were tried."""
        refusal = call.refusal
        gave_up = f"gave up after {self._waited(call)}"
        tried = f"{gave_up}; tried: {self._tried(call)}"
        if refusal is not None and not isinstance(refusal, OutOfSequence):
            if len(self._view.known_addresses()) == 1 and str(refusal) in tried:
                tried = gave_up  # the only server's reason is said already
            error = type(refusal).__new__(type(refusal), f"{refusal} ({tried})")
            error.__dict__.update(refusal.__dict__)  # who leads, which sequence is expected
            return error
        if not any(link.hello is not None for link in self._links.all()):
            return Unreachable(f"no server could be reached: {tried}")
        missed = (
            "the deadline passed before the leader was asked"
            if self.router.is_leader_connected
            else "no leader was found"
        )
        return RequestTimeout(f"{missed}: {tried}")

    def _waited(self, call: Call) -> str:
        return f"{(self.now_ms - call.submitted_ms) / 1000:.1f} s"

    def _tried(self, call: Call) -> str:
        addresses = self._view.known_addresses()
        return ", ".join(f"{address} ({self._met(address, call)})" for address in addresses)

    def _met(self, address: str, call: Call) -> str:
        """The last error at an address. It may be from another call of the client, and be over since."""
        note = self._view.notes.get(address)
        if note is None:
            return self._links.describe(address)
        if note.at_ms >= call.submitted_ms:
            return note.what
        before_s = (call.submitted_ms - note.at_ms) / 1000
        return f"{self._links.describe(address)}; {before_s:.1f} s before: {note.what}"

    # ---------------------------------------------------------------- failures

    def fail_waiting(self, error: LedgerError) -> None:
        for call in list(self._waiting):
            self.fail(call, error)

    def fail_ordered(self, error: LedgerError) -> None:
        for order in self.orders:
            order.fail_all(error)

    def _fail_addressed(self, address: str, reason: str) -> None:
        """Fail calls to one address if it is down or refuses every client: they do not wait."""
        for call in list(self._waiting):
            if call.target == (TargetKind.ADDRESS, address):
                refusal = self._view.group_unknown.get(address)
                self.fail(call, refusal or Unreachable(f"{address}: {reason}"))

    def _fail_if_no_member(self, call: Call) -> None:
        name = call.target.name
        if self._view.advertised and self._view.member_address(name) is None:
            known = ", ".join(sorted(self._view.advertised))
            self.fail(call, BadRequest(f"there is no member {name!r}; the members are {known}"))

    def fail(self, call: Call, error: LedgerError) -> None:
        self._waiting.pop(call, None)
        if call.may_be_done and not isinstance(error, OutcomeUnknown | AlreadyCommitted):
            error = OutcomeUnknown(f"it may or may not be in the log: {error}")
        call.error = error
        self._finish(call)

    def _finish(self, call: Call) -> None:
        assert call.state is not CallState.DONE, (call.message, call.error)
        call.state = CallState.DONE
        if call.on_done is not None:
            call.on_done(call)
        else:
            self.completed.append(call)


def _unreadable(message: ClientMessage) -> str:
    """Why its receiver closes the connection: a field has a value that its type excludes, as a number
    of 64 bits and more. Messages are not checked as they are made."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
    except (msgspec.DecodeError, ValueError) as error:
        return str(error)
    return ""
