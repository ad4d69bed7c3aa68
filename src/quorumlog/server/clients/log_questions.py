"""What clients ask of the log but entries: how it lies, what time it was, who reads it by name."""

from __future__ import annotations

from quorumlog.errors import BadRequest, LedgerError
from quorumlog.log_state.control_entries import Hold
from quorumlog.node.reading.mark_finder import MarkOutcome
from quorumlog.node.retention.reader_moves import MoveOutcome, ReaderMove
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.ledger_store import LOG_ORIGIN, LogStart
from quorumlog.wire.client_messages import (
    FindMarkRequest,
    FindMarkResponse,
    LayoutRequest,
    LayoutResponse,
)
from quorumlog.wire.reader_messages import (
    MoveReaderRequest,
    MoveReaderResponse,
    ReaderInfo,
    ReadersRequest,
    ReadersResponse,
)
from quorumlog.wire.wire_errors import error_response

MOST_INDEX = 2**62
"""Of what an entry can say of a reader."""

LogQuestion = LayoutRequest | FindMarkRequest | MoveReaderRequest | ReadersRequest
LOG_QUESTIONS = (LayoutRequest, FindMarkRequest, MoveReaderRequest, ReadersRequest)


class LogQuestions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, driver: NodeDriver, request: LogQuestion) -> None:
        if isinstance(request, LayoutRequest):
            self._layout(driver, request)
        elif isinstance(request, FindMarkRequest):
            self._find_mark(driver, request)
        elif isinstance(request, MoveReaderRequest):
            self._move_reader(driver, request)
        else:
            self._readers(driver, request)

    def _refuse(self, driver: NodeDriver, request_id: int, error: LedgerError) -> None:
        self._connection.send(driver.config.group, error_response(request_id, error))

    def _layout(self, driver: NodeDriver, request: LayoutRequest) -> None:
        config, node = driver.config, driver.node
        start = node.store.start or LogStart(LOG_ORIGIN, b"")
        response = LayoutResponse(
            request_id=request.request_id,
            member_id=config.member_id,
            cluster_id=node.directory.formation.cluster_id,
            segment_bytes=config.storage.segment_bytes,
            index_segment_bytes=config.storage.index_segment_bytes,
            begin_index=start.point.index,
            begin_term=start.point.term,
            begin_chain=start.point.chain,
            begin_position=start.point.position,
            begin_record=start.record,
        )
        self._connection.send(config.group, response)

    def _find_mark(self, driver: NodeDriver, request: FindMarkRequest) -> None:
        node = driver.node

        def done(outcome: MarkOutcome) -> None:
            if isinstance(outcome, LedgerError):
                self._refuse(driver, request.request_id, outcome)
                return
            response = FindMarkResponse(
                request_id=request.request_id,
                index=-1 if outcome is None else outcome.index,
                time_ms=-1 if outcome is None else outcome.time_ms,
                ledger_begin_index=node.store.begin.index + 1,
                committed_index=node.committed_index,
            )
            self._connection.send(driver.config.group, response)

        if request.index >= 0:
            node.marks.at_index(request.index, done)
        else:
            node.marks.at_time(request.time_ms, done)

    def _move_reader(self, driver: NodeDriver, request: MoveReaderRequest) -> None:
        def done(outcome: MoveOutcome) -> None:
            if isinstance(outcome, LedgerError):
                self._refuse(driver, request.request_id, outcome)
                return
            response = MoveReaderResponse(
                request_id=request.request_id, position=outcome.position, hold=outcome.hold
            )
            self._connection.send(driver.config.group, response)

        try:
            move = _move_of(request)
        except BadRequest as error:
            done(error)
            return
        driver.node.readers.move(move, done, self._connection)

    def _readers(self, driver: NodeDriver, request: ReadersRequest) -> None:
        def confirmed(refusal: LedgerError | None) -> None:
            if refusal is not None:
                self._refuse(driver, request.request_id, refusal)
                return
            try:
                state = driver.node.log_state.committed_state()
            except LedgerError as error:
                self._refuse(driver, request.request_id, error)
                return
            readers = tuple(
                ReaderInfo(
                    name=reader.name,
                    position=reader.position,
                    hold=reader.hold,
                    last_index=reader.last_index,
                    lost_ranges=tuple(
                        (lost.first_index, lost.stop_index)
                        for lost in state.lost_ranges
                        if lost.name == reader.name
                    ),
                )
                for reader in state.readers
            )
            response = ReadersResponse(
                request_id=request.request_id,
                committed_index=driver.node.committed_index,
                keep_from_index=state.keep_from_index,
                readers=readers,
            )
            self._connection.send(driver.config.group, response)

        driver.node.confirm_leadership(confirmed, self._connection)


def _move_of(request: MoveReaderRequest) -> ReaderMove:
    """Raises BadRequest."""
    numbers = [n for n in (request.position, request.seeks_from) if n is not None]
    if any(not 0 <= number <= MOST_INDEX for number in numbers):
        raise BadRequest(f"positions of a reader are indices of entries, unlike {numbers}")
    if request.hold is not None and request.hold not in tuple(Hold):
        raise BadRequest(f"a reader holds 0 (nothing), 1 or 2 (as an archive), not {request.hold}")
    return ReaderMove(
        request.reader,
        request.position,
        None if request.hold is None else Hold(request.hold),
        request.seeks_from,
        request.ends,
        request.opens,
    )
