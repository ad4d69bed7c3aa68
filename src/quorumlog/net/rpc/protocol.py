"""The client without its sockets: bytes and time go in, connections to dial, bytes to write and
finished calls come out (`take_work`). Times are milliseconds of any monotonic clock.

It decides when a connection is closed as failed. A paused leader does not stall a client: a server that
owes an answer for `probe_after_ms` is probed, and the others are asked for the leader. Calls move from
it only when another leader is reported: silence proves nothing, the only leader may be slow.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec

from quorumlog.errors import (
    ClusterChanged,
    ConfigError,
    LedgerError,
    NotAuthenticated,
    Overloaded,
    ProtocolViolation,
    Refused,
    WrongPort,
)
from quorumlog.net.credentials import ClientUser, Proof
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.net.hello import (
    PROTOCOL_VERSION,
    WELCOME,
    Challenge,
    ChallengeResponse,
    Greeting,
    Hello,
)
from quorumlog.net.rpc.calls import CLOSED, Call, CallState, Lane, Link, LinkState, TargetKind
from quorumlog.net.rpc.link_table import LinkTable
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.rpc.tracker import CallTracker
from quorumlog.net.rpc.view import EventKind, GroupEvent, GroupView
from quorumlog.net.strangers import OtherSoftware
from quorumlog.wire.client_message import ClientMessage


class Work(NamedTuple):
    """The client's effects to carry out now, in this order."""

    completed: list[Call]
    close: list[Link]
    dial: list[Link]
    write: dict[Link, None]
    events: list[GroupEvent]


class RpcProtocol:
    """Not thread-safe: the blocking client holds a lock around it."""

    def __init__(
        self,
        servers: Sequence[str],
        product: Product,
        *,
        random: Random,
        timings: Timings | None = None,
    ) -> None:
        assert servers, "a client needs at least one server"
        self.timings = timings or Timings()
        self._product = product
        self.user: ClientUser | None = None
        """The client's user, for servers that have users."""
        self.ungreeted_hint = ""
        """Another possible reason for a connection closed at the greeting."""
        # Shuffled, so that a thousand clients with one list do not all ask the same server first.
        shuffled = list(servers)
        random.shuffle(shuffled)
        self.view = product.view = GroupView(shuffled, distrust_lost_ms=self.timings.connect_timeout_ms)
        self._links = LinkTable(random, self.timings, product.decoder)
        self._calls = CallTracker(product, self.view, self._links, self.timings, random)
        self._router = self._calls.router
        self._ticked_ms = 0.0
        self._events = self._calls.events
        self._reported_leader = ""
        self._lost: dict[str, None] = {}
        """Servers whose connection for appends was lost and is not open again."""

    # ---------------------------------------------------------------- what callers ask for

    @property
    def is_closed(self) -> bool:
        """Any thread."""
        return self._links.is_closed

    def check_open(self) -> None:
        """Raises BadRequest. Any thread."""
        if self._links.is_closed:
            raise self._product.closed_error("the client is closed")

    def submit(self, call: Call, now_ms: float) -> None:
        """Its outcome is in `Work.completed` of a later `take_work`."""
        calls = self._calls
        calls.now_ms = now_ms
        self._product.submitted(call)
        if call.is_done:
            return  # cancelled by another thread, before it came here
        if self._links.is_closed:
            calls.fail(call, self._product.closed_error("the client is closed"))
        elif call.order is not None:
            call.order.submit(call)
        else:
            calls.dispatch(call)

    def cancel(self, call: Call, now_ms: float) -> None:
        """The caller no longer waits. An unsent call is never sent; a sent one is only forgotten: an
        append continues to its outcome."""
        self._calls.now_ms = now_ms
        self._calls.cancel(call)

    def close(self, now_ms: float) -> None:
        self._calls.now_ms = now_ms
        self._links.is_closed = True
        closed = self._product.closed_error
        self._calls.fail_waiting(closed("the client was closed before the request was sent"))
        for link in self._links.all():
            self._drop(link, "the client was closed")
        # Reads that were in flight wait again: they could be repeated, but not by this client.
        self._calls.fail_waiting(closed("the client was closed"))
        self._calls.fail_ordered(closed("the client was closed"))
        assert not self._links.all(), self._links.all()

    # ---------------------------------------------------------------- what the connections bring

    def advance(self, now_ms: float) -> None:
        """Handle deadlines, silent servers and redials. Call at `next_wakeup_ms` at the latest."""
        self._calls.now_ms = self._ticked_ms = now_ms
        self._calls.expire()
        for link in self._links.all():
            self._look_at(link)
        self._calls.send_waiting()
        self._calls.seek()

    def next_wakeup_ms(self) -> float:
        """Time of the next `advance`; infinity if there is no work."""
        tick_ms = self._ticked_ms + self.timings.tick_ms
        look_ms = self._links.next_look_ms(tick_ms, self.timings.listen_ms)
        resume_times_ms = self._calls.resume_times_ms()
        if not resume_times_ms:
            return look_ms
        now_ms = self._calls.now_ms
        return min(tick_ms, look_ms, *[at for at in resume_times_ms if at > now_ms])

    def link_connected(self, link: Link, now_ms: float) -> None:
        self._calls.now_ms = now_ms
        assert link.state is LinkState.DIALING, link.state
        link.state = LinkState.GREETING
        link.since_ms = link.last_received_ms = now_ms
        hello = self._product.hello(link)
        if link.lane is Lane.CONTROL and isinstance(hello, Hello) and self._calls.only_looks:
            hello = msgspec.structs.replace(hello, looks=True)
        if self.user is not None and isinstance(hello, Hello):
            hello = msgspec.structs.replace(hello, user=self.user.name)
        link.outbox += encode_frame(self._product.group, hello)
        self._links.to_write[link] = None

    def link_lost(self, link: Link, reason: str | ProtocolViolation, now_ms: float) -> None:
        """The link could not be dialled, broke, was closed by the server, or received invalid data."""
        self._calls.now_ms = now_ms
        if isinstance(reason, ProtocolViolation):
            if link.state is LinkState.GREETING and isinstance(reason, OtherSoftware):
                self._turned_away(link, reason.at(link.address))
            reason = f"protocol violation: {reason}"
        if link.state is LinkState.GREETING and reason in (CLOSED, os.strerror(errno.ECONNRESET)):
            reason += self._product.ungreeted(link) + self.ungreeted_hint
        if link.state is not LinkState.CLOSED:
            self._drop(link, reason)

    def frames_received(self, link: Link, frames: Sequence[Frame], now_ms: float) -> None:
        """Handle frames; an invalid one closes the link."""
        self._calls.now_ms = now_ms
        product = self._product
        try:
            for group, message, batch, _ in frames:
                if link.state is LinkState.CLOSED:
                    return
                link.last_received_ms = now_ms
                if batch is not None:
                    link.last_entries_ms = now_ms
                if not isinstance(message, ClientMessage) or (
                    # The port of another product knows of no groups.
                    group != product.group and getattr(message, "product", product.name) == product.name
                ):
                    raise ProtocolViolation(f"{type(message).__name__} of group {group!r} at a client")
                if link.state is LinkState.GREETING:
                    self._greeting_answered(link, message)
                    continue
                if isinstance(message, Greeting):
                    raise ProtocolViolation("a greeting in the middle of a connection")
                call = link.pending.pop(message.request_id, None)
                if call is None:
                    self._unasked(link, message)
                elif call is link.probe:
                    self._probe_answered(link, message)
                else:
                    self._calls.answered(link, call, message, batch)
        except ProtocolViolation as violation:
            assert link.state is not LinkState.CLOSED, link.address
            self._drop(link, f"protocol violation: {violation}")

    def bytes_received(self, link: Link, now_ms: float) -> None:
        """Part of a frame arrived: the server is not silent."""
        link.last_received_ms = link.last_entries_ms = now_ms

    def take_work(self) -> Work:
        links, calls, leader = self._links, self._calls, self.view.leader
        if leader is not None and leader.address != self._reported_leader:
            self._reported_leader = leader.address
            self._events.append(GroupEvent(EventKind.LEADER, leader.address))
        work = Work(calls.completed, links.to_close, links.to_dial, links.to_write, [*self._events])
        self._events.clear()
        calls.completed = []
        links.to_close = []
        links.to_dial = []
        links.to_write = {}
        return work

    # ---------------------------------------------------------------- greetings and probes

    def _challenged(self, link: Link, challenge: Challenge) -> None:
        if self.user is None:
            self._drop(link, f"requires a user ({challenge.mechanism}), and this client has none")
            return
        link.proof = link.proof or Proof(self.user)
        try:
            answer = ChallengeResponse(data=link.proof.answer(challenge))
        except (LedgerError, ConfigError) as error:
            self._turned_away(
                link, error if isinstance(error, LedgerError) else NotAuthenticated(str(error))
            )
            return
        link.outbox += encode_frame(self._product.group, answer)
        self._links.to_write[link] = None

    def _greeting_answered(self, link: Link, message: ClientMessage) -> None:
        if isinstance(message, Challenge):
            self._challenged(link, message)
            return
        if isinstance(message, ErrorResponse):
            self._turned_away(link, error_of(message))
            return
        if link.proof is not None and not link.proof.is_whole:
            self._turned_away(link, NotAuthenticated("the server does not prove that it knows the user"))
            return
        try:
            message = self._product.greeting_of(link, message)
        except LedgerError as refusal:
            self._turned_away(link, refusal)
            return
        if message.code != WELCOME:
            self._turned_away(link, error_of(ErrorResponse(code=message.code, message=message.message)))
            return
        if message.protocol != PROTOCOL_VERSION:
            self._drop(link, f"speaks protocol {message.protocol}, this client {PROTOCOL_VERSION}")
            return
        reported, known = message.cluster_id, self._product.cluster_id
        if reported and known and reported != known:
            # A stray address in the list must not splice two logs into one.
            other = f"{link.address} belongs to another cluster ({reported}, not {known})"
            self._turned_away(link, ClusterChanged(f"{other}: create a new client"))
            return
        self._product.cluster_id = known or reported
        link.hello = message
        self._links.greeted(link, self._calls.now_ms)
        self.view.notes.pop(link.address, None)
        if message.member_id:
            self.view.greeted_by(message.member_id, link.address)
        if link.lane is Lane.CONTROL:
            if link.address in self._lost:
                del self._lost[link.address]
                self._events.append(GroupEvent(EventKind.BACK, link.address))
            self._router.ask_view(link, self._calls.now_ms)
        self._calls.send_waiting()

    def _probe_answered(self, link: Link, message: ClientMessage) -> None:
        assert link.probe is not None
        link.probe.state = CallState.DONE
        link.probe = None
        if isinstance(message, ErrorResponse):
            refusal = error_of(message)
            if not refusal.retriable:
                self._turned_away(link, refusal)
            else:
                self.view.note(link.address, str(refusal), self._calls.now_ms)
                self.view.hinted(link.address, refusal, self._calls.now_ms)
            return
        reported = self._product.view_of(message)
        if reported is not None:
            self._calls.learn(link, reported)

    def _unasked(self, link: Link, message: ClientMessage) -> None:
        """A message without a pending call: of a watch, of a call that timed out, or a notification
        of the server."""
        watch = link.watches.get(message.request_id)
        if watch is not None and isinstance(message, ErrorResponse):
            del link.watches[message.request_id]
            self._calls.answered(link, watch, message, None)
        elif watch is not None:
            assert watch.on_message is not None
            watch.on_message(message)
        else:
            reported = self._product.notice_of(message)
            if reported is not None:
                self._calls.learn(link, reported)

    def _turned_away(self, link: Link, refusal: LedgerError) -> None:
        """The server refused the greeting. If all servers do so for good, such as with "unknown
        group", fail all waiting calls."""
        if isinstance(refusal, Refused) and not refusal.retriable:
            self.view.group_unknown[link.address] = refusal
        reason = str(refusal).removeprefix(f"{link.address} ").removeprefix(f"{link.address}: ")
        is_wrong = isinstance(refusal, WrongPort)
        link.is_greeted_again |= isinstance(refusal, Overloaded)
        self._drop(link, reason if is_wrong else f"turned this client away: {reason}")
        if isinstance(refusal, Overloaded):
            self._links.rest(link.address, self._calls.now_ms + refusal.retry_after_ms)
        error = self.view.group_unknown_to_all()
        if isinstance(refusal, NotAuthenticated) and self.user is not None and self.user.is_token:
            error = refusal  # the one that turns it away may lead
        if isinstance(refusal, ClusterChanged) and all(
            address in self.view.group_unknown or self._links.is_down(address)
            for address in self.view.known_addresses()
        ):
            error = refusal  # members of the old cluster may never come back
        if error is not None:
            self._calls.fail_waiting(error)
            self._calls.fail_ordered(error)

    # ---------------------------------------------------------------- what goes wrong

    def _drop(self, link: Link, reason: str) -> None:
        was_open = link.state is LinkState.OPEN
        now_ms = self._calls.now_ms
        self._links.remove(link, now_ms)
        self.view.note(link.address, reason, now_ms)
        if not was_open:
            self.view.forget_greeting(link.address)
        if was_open and link.lane is Lane.CONTROL and not self._links.is_closed:
            self._lost[link.address] = None
            self._events.append(GroupEvent(EventKind.LOST, link.address, reason))
        self._router.connection_ended(link, now_ms, was_open=was_open)
        self._calls.connection_ended(link, reason, was_open=was_open)

    def _look_at(self, link: Link) -> None:
        """Close or probe the link if it does not connect in time, or owes an answer for too long."""
        timings, now_ms = self.timings, self._calls.now_ms
        if link.state in (LinkState.DIALING, LinkState.GREETING):
            if now_ms - link.since_ms > timings.connect_timeout_ms:
                missing = "connection" if link.state is LinkState.DIALING else "greeting"
                self._drop(link, f"no {missing} within {timings.connect_timeout_ms:.0f} ms")
            return
        if link.last_received_ms + timings.listen_ms <= now_ms and (link.watches or link.pending):
            # What it owes may take its time, or is unasked: is it there at all?
            self._router.ask_view(link, now_ms)
        silent_ms = link.silent_ms(now_ms)
        if link.state is not LinkState.OPEN or silent_ms <= timings.probe_after_ms:
            return
        self._router.suspect(link, now_ms)
        calls = [call for call in link.pending.values() if call is not link.probe]
        followed = [*calls, *link.watches.values()]
        leader = self.view.leader
        if (
            leader is not None
            and leader.address != link.address
            and any(call.target.kind is TargetKind.LEADER for call in followed)
        ):
            self._drop(link, f"silent for {silent_ms:.0f} ms, and {leader.address} is the leader now")
        elif silent_ms > timings.move_read_after_ms and any(
            call.target.kind is TargetKind.ANY for call in followed
        ):
            self._drop(link, f"silent for {silent_ms:.0f} ms")
            self._links.rest(link.address, now_ms + timings.connect_timeout_ms)
        elif not calls and silent_ms > 4 * timings.connect_timeout_ms:
            # Nobody needs it, and an idle client should not tick for ever because of a dead machine.
            self._drop(link, f"silent for {silent_ms:.0f} ms")
