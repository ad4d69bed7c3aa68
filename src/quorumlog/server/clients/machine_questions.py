"""Questions of one connection to state machines, and results that are to fit into an answer."""

from __future__ import annotations

import math

from quorumlog.entry import AppendReceipt
from quorumlog.errors import CommandError, ConnectionFull, LedgerError, ResultUnknown
from quorumlog.net.connection import Connection
from quorumlog.net.errors import error_response
from quorumlog.node.applying.machine_driver import Answer
from quorumlog.node.applying.step_overs import StepOverOutcome
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.server.clients.append_streams import RETRY_FULL_MS
from quorumlog.server.clients.read_promises import ReadPromises, age_of
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.client_messages import (
    MachineReadRequest,
    MachineReadResponse,
    StepOverRequest,
    StepOverResponse,
)

ANSWER_LIMIT_BYTES = 8 << 20
"""Of an answer, or of the results of an append."""
WAITING_LIMIT = 1000


class MachineQuestions:
    def __init__(self, connection: Connection, promises: ReadPromises) -> None:
        self._connection = connection
        self._promises = promises
        self._waiting = 0

    def ask(self, driver: NodeDriver, request: MachineReadRequest) -> None:
        group, promise = driver.config.group, request.promise
        since_ms = -math.inf

        def done(answer: Answer) -> None:
            self._waiting -= 1
            if promise is not None and not isinstance(answer, LedgerError):
                answer = self._promises.refusal_of_age(driver, promise, since_ms) or answer
            if not isinstance(answer, LedgerError) and len(answer[0]) > ANSWER_LIMIT_BYTES:
                answer = CommandError(f"an answer of {len(answer[0])} bytes fits into no frame")
            if isinstance(answer, LedgerError):
                self._connection.send(group, error_response(request.request_id, answer))
                return
            response = MachineReadResponse(
                request_id=request.request_id,
                answer=answer[0],
                applied_index=answer[1],
                age_ms=age_of(driver, since_ms),
            )
            self._connection.send(group, response)
            if self._waiting and self._connection.is_full:
                self._connection.when_room(driver.schedule)

        self._waiting += 1
        if self._waiting > WAITING_LIMIT:
            full = f"{WAITING_LIMIT} questions wait on this connection"
            done(ConnectionFull(full, retry_after_ms=RETRY_FULL_MS))
            return
        timeout_ms = request.timeout_ms or driver.config.append_timeout_ms
        machines = driver.node.machines
        if promise is None:
            machines.ask(request.machine, request.question, timeout_ms, done, self._connection)
            return

        def kept(asked_ms: float, refusal: LedgerError | None) -> None:
            nonlocal since_ms
            if refusal is not None:
                done(refusal)
                return
            # What is committed by now is applied first, so the answer is as fresh as that is now.
            since_ms = max(asked_ms, driver.node.raft.reads.fresh_since_ms())
            machines.ask_here(request.machine, request.question, timeout_ms, done, self._connection)

        self._promises.wait(driver, promise, kept)

    def step_over(self, driver: NodeDriver, request: StepOverRequest) -> None:
        group, number = driver.config.group, request.request_id

        def done(outcome: StepOverOutcome) -> None:
            if isinstance(outcome, LedgerError):
                self._connection.send(group, error_response(number, outcome))
            else:
                self._connection.send(group, StepOverResponse(request_id=number, index=outcome))

        step_overs = driver.node.machines.step_overs
        step_overs.request(request.machine, request.index, request.unsafe, done)


def within_a_frame(receipt: AppendReceipt) -> AppendOutcome:
    """Of an append with results: the receipt, if they fit."""
    size_bytes = sum(len(result) for result in receipt.results if result is not None)
    size_bytes += sum(len(why) for _, why in receipt.failures)
    if size_bytes <= ANSWER_LIMIT_BYTES:
        return receipt
    return ResultUnknown(
        f"entries {receipt.first_index} .. {receipt.last_index} are committed, and their results, of"
        f" {size_bytes} bytes, fit into no frame: append fewer commands at once"
    )
