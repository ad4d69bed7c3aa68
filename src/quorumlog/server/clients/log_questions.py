"""What clients ask of the log besides entries: how it lies, and what time it was."""

from __future__ import annotations

from quorumlog.errors import LedgerError
from quorumlog.node.reading import MarkOutcome
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.ledger_store import LOG_ORIGIN, LogStart
from quorumlog.wire.client_messages import (
    FindMarkRequest,
    FindMarkResponse,
    LayoutRequest,
    LayoutResponse,
)
from quorumlog.wire.wire_errors import error_response

LogQuestion = LayoutRequest | FindMarkRequest
LOG_QUESTIONS = (LayoutRequest, FindMarkRequest)


class LogQuestions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, driver: NodeDriver, request: LogQuestion) -> None:
        if isinstance(request, LayoutRequest):
            self._layout(driver, request)
        else:
            self._find_mark(driver, request)

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
                clock_resets=node.marks.clock_resets,
            )
            self._connection.send(driver.config.group, response)

        if request.index >= 0:
            node.marks.at_index(request.index, done)
        else:
            node.marks.at_time(request.time_ms, done)
