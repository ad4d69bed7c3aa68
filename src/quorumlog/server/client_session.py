"""What a client asks on one connection: append, read, status, transfer.

Streams: the leader accepts request n of a stream only behind n - 1 on the same connection. When n is
refused after it was accepted (the batch that it joined could not be written, or leadership was lost
first), all behind it are refused too, until the client resends from the first refused one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    LedgerError,
    OutcomeUnknown,
    OutOfSequence,
    ProtocolViolation,
    UnknownGroup,
)
from quorumlog.node.ledger_node import TransferOutcome
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver, ReadOutcome
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    TransferRequest,
    TransferResponse,
    error_response,
)
from quorumlog.wire.framing import Frame

if TYPE_CHECKING:
    from quorumlog.server.ledger_server import LedgerServer

READ_LIMIT_BYTES = 8 << 20
"""Most bytes of one answer to a read, whatever the request asks."""
WAIT_LIMIT_MS = 60_000


class ClientSession:
    def __init__(self, server: LedgerServer) -> None:
        self._server = server
        self._expected: dict[tuple[str, int], int] = {}
        """Next acceptable number of each stream, by (group, stream)."""

    def frame(self, connection: Connection, frame: Frame) -> None:
        request = frame.message
        driver = self._server.driver_of(frame.group)
        if driver is None:
            known = ", ".join(self._server.group_names)
            if not isinstance(request, AppendRequest | ReadRequest | StatusRequest | TransferRequest):
                raise ProtocolViolation(f"{type(request).__name__} from a client")
            connection.send(
                frame.group,
                error_response(
                    request.request_id,
                    UnknownGroup(f"group {frame.group!r} is not served here; groups: {known}"),
                ),
            )
        elif isinstance(request, AppendRequest):
            self._append(connection, driver, request, frame.payload)
        elif isinstance(request, ReadRequest):
            driver.enter(connection, self._read, connection, driver, request, request.wait_ms)
        elif isinstance(request, StatusRequest):
            driver.enter(connection, self._status, connection, driver, request)
        elif isinstance(request, TransferRequest):
            driver.enter(connection, self._transfer, connection, driver, request)
        else:
            raise ProtocolViolation(f"{type(request).__name__} from a client")

    def lost(self, connection: Connection, closed_by_peer: bool) -> None:
        """Requests that are under way end by themselves; their answers go nowhere."""

    # ---------------------------------------------------------------- append

    def _append(
        self,
        connection: Connection,
        driver: NodeDriver,
        request: AppendRequest,
        batch: EntryBatch | None,
    ) -> None:
        if request.previous_connection:
            self._server.close_connection(driver, request.previous_connection)
        driver.enter(connection, self._append_in_turn, connection, driver, request, batch)

    def _append_in_turn(
        self,
        connection: Connection,
        driver: NodeDriver,
        request: AppendRequest,
        batch: EntryBatch | None,
    ) -> None:
        done = functools.partial(self._appended, connection, driver, request)
        if batch is None:
            done(BadRequest("an append needs at least one entry"))
            return
        if request.stream:
            key = (driver.config.group, request.stream)
            expected = self._expected.get(key, 1)
            if request.number != expected:
                done(
                    OutOfSequence(
                        f"request {request.number} of a stream came where {expected} was expected"
                    )
                )
                return
            self._expected[key] = expected + 1
        driver.node.append(batch, request.timeout_ms, done, connection)

    def _appended(
        self,
        connection: Connection,
        driver: NodeDriver,
        request: AppendRequest,
        outcome: AppendOutcome,
    ) -> None:
        group = driver.config.group
        if isinstance(outcome, AppendReceipt):
            connection.send(
                group,
                AppendResponse(
                    request_id=request.request_id,
                    term=outcome.term,
                    first_index=outcome.first_index,
                    count=outcome.count,
                    durability=outcome.durability,
                ),
            )
            return
        key = (group, request.stream)
        if request.stream and not isinstance(outcome, OutcomeUnknown):
            self._expected[key] = min(self._expected.get(key, 1), request.number)
        connection.send(group, error_response(request.request_id, outcome))

    # ---------------------------------------------------------------- read

    def _read(
        self, connection: Connection, driver: NodeDriver, request: ReadRequest, wait_ms: int
    ) -> None:
        if wait_ms > 0 and request.first_index > driver.node.committed_index:
            wake = functools.partial(self._read_woken, connection, driver, request)
            driver.wait_for(request.first_index, min(wait_ms, WAIT_LIMIT_MS), wake)
            return
        limit_bytes = max(1, min(request.limit_bytes, READ_LIMIT_BYTES))
        driver.read(
            request.first_index,
            request.stop_index,
            limit_bytes,
            functools.partial(self._read_done, connection, driver, request),
        )

    def _read_woken(self, connection: Connection, driver: NodeDriver, request: ReadRequest) -> None:
        if request.first_index > driver.node.committed_index:
            self._read_done(connection, driver, request, None)
        else:
            self._read(connection, driver, request, 0)

    def _read_done(
        self, connection: Connection, driver: NodeDriver, request: ReadRequest, outcome: ReadOutcome
    ) -> None:
        group = driver.config.group
        if isinstance(outcome, LedgerError):
            connection.send(group, error_response(request.request_id, outcome))
            return
        connection.send(
            group,
            ReadResponse(
                request_id=request.request_id,
                first_index=request.first_index,
                count=outcome.count if outcome is not None else 0,
                ledger_begin_index=driver.node.store.begin.index + 1,
                committed_index=driver.node.committed_index,
            ),
            outcome,
        )

    # ---------------------------------------------------------------- status, transfer

    def _status(self, connection: Connection, driver: NodeDriver, request: StatusRequest) -> None:
        connection.send(driver.config.group, driver.status(request.request_id))

    def _transfer(self, connection: Connection, driver: NodeDriver, request: TransferRequest) -> None:
        def done(outcome: TransferOutcome) -> None:
            if isinstance(outcome, LedgerError):
                answer = error_response(request.request_id, outcome)
                connection.send(driver.config.group, answer)
                return
            connection.send(
                driver.config.group,
                TransferResponse(
                    request_id=request.request_id,
                    leader_id=outcome.leader_id or "",
                    term=outcome.term,
                ),
            )

        driver.node.transfer(request.to_member_id, done)
