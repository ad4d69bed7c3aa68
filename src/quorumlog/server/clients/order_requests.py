"""What an operator orders by an entry of the log: answered once it is committed, or refused."""

from __future__ import annotations

from quorumlog.errors import LedgerError
from quorumlog.node.operator_orders import ResetOutcome, UpgradeOutcome
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.client_messages import (
    FinishUpgradeRequest,
    FinishUpgradeResponse,
    ResetClockRequest,
    ResetClockResponse,
)
from quorumlog.wire.wire_errors import error_response


def reset_clock(driver: NodeDriver, request: ResetClockRequest, connection: Connection) -> None:
    def done(outcome: ResetOutcome) -> None:
        if isinstance(outcome, LedgerError):
            connection.send(driver.config.group, error_response(request.request_id, outcome))
            return
        response = ResetClockResponse(
            request_id=request.request_id, index=outcome.index, time_ms=outcome.time_ms
        )
        connection.send(driver.config.group, response)

    driver.node.orders.reset_clock(done)


def finish_upgrade(driver: NodeDriver, request: FinishUpgradeRequest, connection: Connection) -> None:
    def done(outcome: UpgradeOutcome) -> None:
        if isinstance(outcome, LedgerError):
            connection.send(driver.config.group, error_response(request.request_id, outcome))
            return
        response = FinishUpgradeResponse(
            request_id=request.request_id, index=outcome.at_index, level=outcome.level
        )
        connection.send(driver.config.group, response)

    driver.node.orders.finish_upgrade(done)
