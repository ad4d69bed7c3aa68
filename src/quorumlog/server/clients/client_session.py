"""What a client asks on one connection: append, read, status, transfer, layout.

Streams: the leader accepts request n of a stream only behind n - 1 on the same connection. When n is
refused after it was accepted (the batch that it joined could not be written, or leadership was lost
first), all behind it are refused too, until the client resends from the first refused one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    ConnectionFull,
    LedgerError,
    OutcomeUnknown,
    ProtocolViolation,
    UnknownGroup,
)
from quorumlog.net.connection import Connection
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame
from quorumlog.node.pending_appends import AppendOutcome, SessionPlace
from quorumlog.node.transfers import TransferOutcome
from quorumlog.server.clients.append_streams import RETRY_FULL_MS, AppendStreams
from quorumlog.server.clients.client_reads import ClientReads
from quorumlog.server.clients.log_questions import LOG_QUESTIONS, LogQuestions
from quorumlog.server.clients.machine_questions import MachineQuestions, within_a_frame
from quorumlog.server.clients.member_requests import change_members
from quorumlog.server.clients.order_requests import finish_upgrade, reset_clock
from quorumlog.server.clients.producer_requests import (
    PRODUCER_REQUESTS,
    ProducerRequest,
    ProducerRequests,
    ranges_on_wire,
)
from quorumlog.server.clients.read_promises import ReadPromises
from quorumlog.server.clients.reader_requests import READER_REQUESTS, ReaderRequests
from quorumlog.server.node_driver import NodeDriver
from quorumlog.server.waiting_reads import begins_anew
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    ChangeMembersRequest,
    FinishUpgradeRequest,
    MachineReadRequest,
    ReadRequest,
    ResetClockRequest,
    StatusRequest,
    StepOverRequest,
    TransferRequest,
    TransferResponse,
)

_REQUESTS = (
    AppendRequest,
    ReadRequest,
    StatusRequest,
    TransferRequest,
    ChangeMembersRequest,
    ResetClockRequest,
    FinishUpgradeRequest,
    MachineReadRequest,
    StepOverRequest,
    *LOG_QUESTIONS,
    *PRODUCER_REQUESTS,
    *READER_REQUESTS,
)


class ClientSession:
    def __init__(
        self,
        connection: Connection,
        drivers: Mapping[str, NodeDriver],
        close_client: Callable[[str], None],
    ) -> None:
        """`drivers`: by group. `close_client(connection_id)` ends another client's session."""
        self._connection = connection
        self._drivers = drivers
        self._close_client = close_client
        self._streams = AppendStreams()
        promises = ReadPromises(connection)
        self._reads = ClientReads(connection, promises)
        self._questions = MachineQuestions(connection, promises)
        self._log_questions = LogQuestions(connection)
        self._producers = ProducerRequests(connection)
        self._readers = ReaderRequests(connection)
        self._in_flight_bytes = 0
        """Of appends that are not answered yet."""

    def frame(self, frame: Frame) -> None:
        group, request, batch = frame
        driver = self._drivers.get(group)
        if driver is None:
            if not isinstance(request, _REQUESTS):
                raise ProtocolViolation(f"{type(request).__name__} from a client")
            known = ", ".join(self._drivers)
            error = UnknownGroup(
                f"group {group!r} is not served here; groups: {known}", groups=self._drivers
            )
            self._connection.send(group, error_response(request.request_id, error))
        elif driver.stopped and (number := getattr(request, "request_id", None)) is not None:
            self._refuse(driver, number, begins_anew(driver.config.member_id))
        elif isinstance(request, AppendRequest):
            if request.previous_connection:
                self._close_client(request.previous_connection)
            driver.enter(self._connection, self._append, driver, request, batch)
        elif isinstance(request, ReadRequest):
            driver.enter(self._connection, self._reads.ask, driver, request)
        elif isinstance(request, StatusRequest):
            driver.enter(self._connection, self._status, driver, request)
        elif isinstance(request, TransferRequest):
            driver.enter(self._connection, self._transfer, driver, request)
        elif isinstance(request, ProducerRequest):
            driver.enter(self._connection, self._producers.ask, driver, request)
        elif isinstance(request, LOG_QUESTIONS):
            driver.enter(self._connection, self._log_questions.ask, driver, request)
        elif isinstance(request, ChangeMembersRequest):
            driver.enter(self._connection, change_members, driver, request, self._connection)
        elif isinstance(request, ResetClockRequest):
            driver.enter(self._connection, reset_clock, driver, request, self._connection)
        elif isinstance(request, FinishUpgradeRequest):
            driver.enter(self._connection, finish_upgrade, driver, request, self._connection)
        elif isinstance(request, MachineReadRequest):
            driver.enter(self._connection, self._questions.ask, driver, request)
        elif isinstance(request, StepOverRequest):
            driver.enter(self._connection, self._questions.step_over, driver, request)
        elif isinstance(request, READER_REQUESTS):
            driver.enter(self._connection, self._readers.ask, driver, request)
        else:
            raise ProtocolViolation(f"{type(request).__name__} from a client")

    def lost(self) -> None:
        """What is proposed ends by itself, its answer goes nowhere; what is only queued is dropped."""
        self._reads.lost()
        for driver in self._drivers.values():
            driver.node.discard_requests_of(self._connection)

    def _refuse(self, driver: NodeDriver, request_id: int, error: LedgerError) -> None:
        self._connection.send(driver.config.group, error_response(request_id, error))

    # ---------------------------------------------------------------- append

    def _append(self, driver: NodeDriver, request: AppendRequest, batch: EntryBatch | None) -> None:
        if batch is None:
            self._refuse(driver, request.request_id, BadRequest("an append needs at least one entry"))
            return
        if request.stream and (request.expected_last is not None or request.machine):
            error = BadRequest("an append of a stream can have no expected_last and no machine")
            self._refuse(driver, request.request_id, error)
            return
        session, place = request.session, None
        if session is not None:
            if request.stream or request.expected_last is not None:
                refusal = BadRequest(
                    "an append of a session can be in no stream, nor have expected_last"
                )
                self._refuse(driver, request.request_id, refusal)
                return
            place = SessionPlace(session.producer, session.epoch, session.sequence)
        if request.stream:
            out_of_order = self._streams.accept((driver.config.group, request.stream), request.number)
            if out_of_order is not None:
                self._refuse(driver, request.request_id, out_of_order)
                return
        size_bytes = batch.total_bytes
        in_flight_bytes = self._in_flight_bytes
        self._in_flight_bytes += size_bytes
        done = functools.partial(self._appended, driver, request, size_bytes)
        limit_bytes = driver.config.max_connection_bytes
        if in_flight_bytes and in_flight_bytes + size_bytes > limit_bytes:
            done(
                ConnectionFull(
                    f"{in_flight_bytes} bytes are in flight on this connection (max_connection_bytes"
                    f" {limit_bytes})",
                    retry_after_ms=RETRY_FULL_MS,
                )
            )
            return
        driver.node.append(
            batch,
            request.timeout_ms,
            done,
            self._connection,
            request.expected_last,
            place,
            request.machine,
        )

    def _appended(
        self, driver: NodeDriver, request: AppendRequest, size_bytes: int, outcome: AppendOutcome
    ) -> None:
        self._in_flight_bytes -= size_bytes
        group = driver.config.group
        if request.stream:
            key = (group, request.stream)
            if isinstance(outcome, AppendReceipt | OutcomeUnknown):
                self._streams.answered(key)
            else:
                self._streams.refused(key, request.number)
        if isinstance(outcome, AppendReceipt) and outcome.results:
            outcome = within_a_frame(outcome)
        if not isinstance(outcome, AppendReceipt):
            self._refuse(driver, request.request_id, outcome)
            return
        self._connection.send(
            group,
            AppendResponse(
                request_id=request.request_id,
                term=outcome.term,
                first_index=outcome.first_index,
                count=outcome.count,
                durability=outcome.durability,
                ranges=ranges_on_wire(outcome) if outcome.ranges else (),
                results=outcome.results,
                failures=outcome.failures,
            ),
        )

    # ---------------------------------------------------------------- the rest

    def writable(self) -> None:
        self._reads.next_read()

    def _status(self, driver: NodeDriver, request: StatusRequest) -> None:
        status = driver.status.response(request.request_id)
        groups = tuple(self._drivers)
        self._connection.send(driver.config.group, msgspec.structs.replace(status, groups=groups))

    def _transfer(self, driver: NodeDriver, request: TransferRequest) -> None:
        def done(outcome: TransferOutcome) -> None:
            if isinstance(outcome, LedgerError):
                self._refuse(driver, request.request_id, outcome)
                return
            response = TransferResponse(
                request_id=request.request_id, leader_id=outcome.leader_id or "", term=outcome.term
            )
            self._connection.send(driver.config.group, response)

        driver.node.transfer(request.to_member_id, done)
