"""What clients ask of the sessions of producers: to connect, what is in the log, to forget."""

from __future__ import annotations

from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError
from quorumlog.node.producer_sessions import Connected, KnownProducer
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.producer_messages import (
    ConnectProducer,
    ConnectProducerResponse,
    ForgetProducer,
    ForgetProducerResponse,
    LastSequence,
    LastSequenceResponse,
    ListProducers,
    ListProducersResponse,
    ProducerInfo,
)
from quorumlog.wire.wire_errors import error_response

LIST_LIMIT = 10_000
"""Producers of one answer at most, whatever the request asks."""

ProducerRequest = ConnectProducer | LastSequence | ListProducers | ForgetProducer
PRODUCER_REQUESTS = (ConnectProducer, LastSequence, ListProducers, ForgetProducer)


class ProducerRequests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, driver: NodeDriver, request: ProducerRequest) -> None:
        if isinstance(request, ConnectProducer):
            self._connect(driver, request)
        elif isinstance(request, LastSequence):
            self._show(driver, request)
        elif isinstance(request, ListProducers):
            self._list(driver, request)
        else:
            self._forget(driver, request)

    def _send(self, driver: NodeDriver, request_id: int, answer: ClientMessage | LedgerError) -> None:
        if isinstance(answer, LedgerError):
            answer = error_response(request_id, answer)
        self._connection.send(driver.config.group, answer)

    def _connect(self, driver: NodeDriver, request: ConnectProducer) -> None:
        def done(outcome: Connected | LedgerError) -> None:
            answer: ClientMessage | LedgerError
            if isinstance(outcome, LedgerError):
                answer = outcome
            else:
                answer = ConnectProducerResponse(
                    request_id=request.request_id,
                    opened=outcome.opened,
                    epoch=outcome.epoch,
                    last_sequence=outcome.last_sequence,
                    seen_index=outcome.seen_index,
                )
            self._send(driver, request.request_id, answer)

        node = driver.node
        deadline_ms = node.deadline_ms(request.timeout_ms)
        asked = (request.producer, request.token, request.ends, deadline_ms)
        node.sessions.connect(*asked, done, self._connection, request.seen_index)

    def _show(self, driver: NodeDriver, request: LastSequence) -> None:
        def done(outcome: KnownProducer | LedgerError) -> None:
            answer: ClientMessage | LedgerError
            if isinstance(outcome, LedgerError):
                answer = outcome
            else:
                answer = LastSequenceResponse(request_id=request.request_id, producer=_info(outcome))
            self._send(driver, request.request_id, answer)

        driver.node.sessions.show(request.producer, done, self._connection)

    def _list(self, driver: NodeDriver, request: ListProducers) -> None:
        limit = max(1, min(request.limit, LIST_LIMIT))

        def done(outcome: list[KnownProducer] | LedgerError) -> None:
            answer: ClientMessage | LedgerError
            if isinstance(outcome, LedgerError):
                answer = outcome
            else:
                answer = ListProducersResponse(
                    request_id=request.request_id,
                    producers=tuple(map(_info, outcome)),
                    is_last=len(outcome) < limit,
                )
            self._send(driver, request.request_id, answer)

        driver.node.sessions.list(request.after, limit, done, self._connection)

    def _forget(self, driver: NodeDriver, request: ForgetProducer) -> None:
        def done(outcome: LedgerError | None) -> None:
            answer = outcome or ForgetProducerResponse(request_id=request.request_id)
            self._send(driver, request.request_id, answer)

        node = driver.node
        deadline_ms = node.deadline_ms(0)
        node.sessions.forget(request.producer, request.epoch, deadline_ms, done, self._connection)


def _info(known: KnownProducer) -> ProducerInfo:
    session = known.session
    newest = session.batches[-1][-1] if session.batches else None
    return ProducerInfo(
        producer=known.producer,
        epoch=session.epoch,
        last_sequence=session.last_sequence,
        last_index=-1 if newest is None else newest.first_index + newest.count - 1,
    )


def ranges_on_wire(receipt: AppendReceipt) -> tuple[tuple[int, int, int], ...]:
    return tuple((each.first_index, each.count, each.term) for each in receipt.ranges)
