"""What a client wants changed about the log's time."""

from __future__ import annotations

from quorumlog.errors import LedgerError
from quorumlog.node.writing.clock_resets import ResetOutcome
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.client_messages import ResetClockRequest, ResetClockResponse
from quorumlog.wire.wire_errors import error_response


def reset_clock(driver: NodeDriver, request: ResetClockRequest, connection: Connection) -> None:
    """Answered once it is committed, or refused."""

    def done(outcome: ResetOutcome) -> None:
        if isinstance(outcome, LedgerError):
            connection.send(driver.config.group, error_response(request.request_id, outcome))
            return
        response = ResetClockResponse(
            request_id=request.request_id, index=outcome.index, time_ms=outcome.time_ms
        )
        connection.send(driver.config.group, response)

    driver.node.clock_resets.request(done)
