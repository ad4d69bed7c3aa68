"""One client connection: its requests and their answers.

Streams: the leader accepts request n of a stream only after n - 1 on the same connection. When n is
refused after it was accepted (the batch that it joined could not be written, or leadership was lost
first), all after it are refused too, until the client resends from the first refused one.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.client_guard import contain
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    ConnectionFull,
    LedgerError,
    OutcomeUnknown,
    ProtocolViolation,
    ResultUnknown,
    UnknownGroup,
)
from quorumlog.net.access import Caller, audit
from quorumlog.net.connection import Connection
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame
from quorumlog.node.pending_appends import AppendOutcome, SessionPlace
from quorumlog.server.clients.client_reads import RETRY_FULL_MS, AppendStreams, ClientReads
from quorumlog.server.clients.needs import ADMINISTRATIVE, key_of, needs_of, words_of
from quorumlog.server.clients.requests import ANSWER_LIMIT_BYTES, SERVED, Serving
from quorumlog.server.node_driver import NodeDriver
from quorumlog.server.users_of_server import UsersOfServer
from quorumlog.server.waiting_reads import begins_anew
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    RESPONSE_OF,
    AppendRequest,
    AppendResponse,
    ChangeUsersRequest,
    MemberInfo,
    ReadRequest,
    StatusRequest,
    StatusResponse,
    UsersRequest,
)

log = logging.getLogger("quorumlog.server")

OF_USERS = (ChangeUsersRequest, UsersRequest)
WAITING_LIMIT = 1000
"""Requests of a connection that are neither appends nor reads, which have bounds of their own."""


class ClientSession:
    def __init__(
        self,
        connection: Connection,
        drivers: Mapping[str, NodeDriver],
        close_client: Callable[[str], None],
        users: UsersOfServer,
    ) -> None:
        """`drivers`: by group. `close_client(connection_id)` ends another client's session."""
        self._connection = connection
        self._users = users
        self._access = users.access
        self._caller = Caller(users.access, connection)
        self._drivers = drivers
        self._close_client = close_client
        self._streams = AppendStreams()
        self._reads = ClientReads(connection, self._reply, self._refusal, self._caller)
        self._waiting = 0
        self._in_flight_bytes = 0
        """Of appends that are not answered yet."""
        self._began_s: dict[int, float] = {}
        """Of requests that are not answered yet, by their ids."""

    def frame(self, frame: Frame) -> None:
        request: Any
        group, request, _, _ = frame
        if type(request) not in RESPONSE_OF:
            raise ProtocolViolation(f"{type(request).__name__} from a client")
        driver = self._drivers.get(group)
        refusal = None
        if self._caller.open_in != self._access.generation:
            refusal = self._refusal(request, group)
        if driver is None:
            known = ", ".join(self._drivers)
            refusal = refusal or UnknownGroup(
                f"group {group!r} is not served here; groups: {known}", groups=self._drivers
            )
            self._connection.send(group, error_response(request.request_id, refusal))
            return
        self._began_s[request.request_id] = time.monotonic()
        if refusal is None and driver.stopped:
            refusal = begins_anew(driver.config.member_id)
        if refusal is not None:
            self._reply(driver, request, refusal)
        else:
            if isinstance(request, AppendRequest) and request.previous_connection:
                self._close_client(request.previous_connection)
            driver.enter(self._connection, frame)

    def _refusal(self, request: Any, group: str) -> LedgerError | None:
        """Of this user, as its rights are by now."""
        key = key_of(request, group)
        if not self._caller.passes(key):
            if isinstance(request, StatusRequest):
                return None  # it is bare for who is nobody
            refusal = self._caller.refusal(key, needs_of(request, group))
            if refusal is not None:
                return refusal
        return None

    def take(self, driver: NodeDriver, frame: Frame) -> None:
        """In the member's turn."""
        request: Any
        group, request, batch, _ = frame
        if isinstance(request, AppendRequest):
            self._append(driver, request, batch)
        elif isinstance(request, ReadRequest):
            self._reads.ask(driver, request)
        elif isinstance(request, StatusRequest):
            status = driver.status.response(request.request_id)
            status = msgspec.structs.replace(
                status,
                groups=tuple(self._drivers),
                events=driver.events.all() if request.events else (),
                users=self._users.words,
                problems=(*status.problems, *self._users.problems),
            )
            if self._users.hides_status and self._caller.is_checked and not self._caller.has_name:
                status = bare(status)
            self._reply(driver, request, status)
        elif isinstance(request, OF_USERS) and driver.config.group != self._users.group:
            elsewhere = f"users live in group {self._users.group} here: name that one (--group)"
            self._reply(driver, request, BadRequest(elsewhere))
        elif self._waiting >= WAITING_LIMIT:
            full = f"{WAITING_LIMIT} requests wait on this connection"
            self._reply(driver, request, ConnectionFull(full, retry_after_ms=RETRY_FULL_MS))
        else:
            if type(request) in ADMINISTRATIVE and self._caller.is_checked:
                # Here, once: a request that waited for room was judged again and again.
                audit.warning("user %s at %s: group %s: %s", *self._caller.who, group, words_of(request))
            self._waiting += 1
            serving = SERVED[type(request)](driver, request, self._connection)
            self._serve(driver, request, serving, None)

    def lost(self) -> None:
        """Proposed appends complete without an answer; queued ones are dropped."""
        self._reads.lost()
        for driver in self._drivers.values():
            driver.node.discard_requests_of(self._connection)

    def writable(self) -> None:
        self._reads.next_read()

    def _reply(
        self,
        driver: NodeDriver,
        request: ClientMessage,
        outcome: ClientMessage | LedgerError,
        batch: EntryBatch | None = None,
    ) -> None:
        """The one answer to a request, or its refusal."""
        code = 0
        if isinstance(outcome, LedgerError):
            if isinstance(request, AppendRequest):
                driver.events.refused(outcome)
            log.debug(
                "%s: %s of %s is refused: %s",
                driver.config.full_name,
                type(request).__name__.removesuffix("Request"),
                self._connection.peer_name,
                outcome,
                extra={"event": "request_refused"},
            )
            code, outcome = outcome.code, error_response(request.request_id, outcome)
        began_s = self._began_s.pop(request.request_id, None)
        if began_s is not None:
            driver.requests.answered(type(request), code, time.monotonic() - began_s)
        self._connection.send(driver.config.group, outcome, batch)

    def _serve(self, driver: NodeDriver, request: ClientMessage, serving: Serving, outcome: Any) -> None:
        """It goes on with the `outcome` that it waited for, until it waits for a later one, or ends."""
        response: ClientMessage | LedgerError
        try:
            serving.send(outcome)(functools.partial(self._serve, driver, request, serving))
            return
        except StopIteration as end:
            response = msgspec.structs.replace(end.value, request_id=request.request_id)
        except LedgerError as refusal:
            response = refusal.with_traceback(None)  # or it would hold this frame, and that the request
        except Exception as error:
            self._waiting -= 1
            contain(error, self._connection)
            return
        self._waiting -= 1
        self._reply(driver, request, response)
        if isinstance(request, ChangeUsersRequest):
            self._users.look()  # a client that learns of it may act on it here
        if self._waiting and self._connection.is_full:
            self._connection.when_room(driver.schedule)

    # ---------------------------------------------------------------- append

    def _append(self, driver: NodeDriver, request: AppendRequest, batch: EntryBatch | None) -> None:
        if batch is None:
            self._reply(driver, request, BadRequest("an append needs at least one entry"))
            return
        session, place = request.session, None
        refusal: LedgerError | None = None
        if request.stream and (request.expected_last is not None or request.machine):
            refusal = BadRequest("an append of a stream can have no expected_last and no machine")
        elif session is not None:
            place = SessionPlace(session.producer, session.epoch, session.sequence)
            if request.stream or request.expected_last is not None:
                refusal = BadRequest(
                    "an append of a session can be in no stream, nor have expected_last"
                )
        elif request.stream:
            refusal = self._streams.accept((driver.config.group, request.stream), request.number)
        if refusal is not None:
            self._reply(driver, request, refusal)
            return
        size_bytes = batch.total_bytes
        in_flight_bytes = self._in_flight_bytes
        self._in_flight_bytes += size_bytes
        done = functools.partial(self._appended, driver, request, size_bytes)
        limit_bytes = driver.config.max_connection_bytes
        if in_flight_bytes and in_flight_bytes + size_bytes > limit_bytes:
            full = f"{in_flight_bytes} bytes are in flight on this connection (max_connection_bytes"
            done(ConnectionFull(f"{full} {limit_bytes})", retry_after_ms=RETRY_FULL_MS))
            return
        owner, expected_last = self._connection, request.expected_last
        driver.node.append(batch, request.timeout_ms, done, owner, expected_last, place, request.machine)

    def _appended(
        self, driver: NodeDriver, request: AppendRequest, size_bytes: int, outcome: AppendOutcome
    ) -> None:
        self._in_flight_bytes -= size_bytes
        if request.stream:
            key = (driver.config.group, request.stream)
            if isinstance(outcome, AppendReceipt | OutcomeUnknown):
                self._streams.answered(key)
            else:
                self._streams.refused(key, request.number)
        if isinstance(outcome, AppendReceipt) and outcome.results:
            outcome = _within_a_frame(outcome)
        if isinstance(outcome, LedgerError):
            self._reply(driver, request, outcome)
            return
        response = AppendResponse(
            request_id=request.request_id,
            term=outcome.term,
            first_index=outcome.first_index,
            count=outcome.count,
            durability=outcome.durability,
            ranges=tuple((each.first_index, each.count, each.term) for each in outcome.ranges)
            if outcome.ranges
            else (),
            results=outcome.results,
            failures=outcome.failures,
        )
        self._reply(driver, request, response)


def bare(status: StatusResponse) -> StatusResponse:
    """The part of the response that finds the leader: for a client without a user."""
    members = tuple(MemberInfo(id=each.id, address=each.address) for each in status.members)
    shown = {name: getattr(status, name) for name in _BARE}
    return StatusResponse(members=members, directory_id="", flush="", **shown)


_BARE = (
    *("request_id", "group", "id", "address", "cluster_id", "role", "term", "leader_id"),
    *("leader_address", "ledger_begin_index", "ledger_end_index", "durable_index", "committed_index"),
    *("membership_index", "groups", "level", "users"),
)


def _within_a_frame(receipt: AppendReceipt) -> AppendOutcome:
    """Of an append with results: the receipt, if they fit."""
    size_bytes = sum(len(result) for result in receipt.results if result is not None)
    size_bytes += sum(len(why) for _, why in receipt.failures)
    if size_bytes <= ANSWER_LIMIT_BYTES:
        return receipt
    return ResultUnknown(
        f"entries {receipt.first_index} .. {receipt.last_index} are committed, and their results, of"
        f" {size_bytes} bytes, fit into no frame: append fewer commands at once"
    )
