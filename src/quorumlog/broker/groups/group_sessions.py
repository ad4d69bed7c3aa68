"""GroupSessions: sends of a producer's session are in the log once, however often they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.dledger.message_entries import MACHINE_NAME, entries_of, records_of
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.wire.group_messages import (
    OpenSessionRequest,
    OpenSessionResponse,
    SessionSendRequest,
    SessionSendResponse,
)
from quorumlog.broker.wire.group_names import SYSTEM_PREFIX
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BadRequest, LedgerError
from quorumlog.log_state.control_entries import Epoch
from quorumlog.node import AppendOutcome
from quorumlog.node.pending_appends import SessionPlace
from quorumlog.node.producer_sessions import Connected

if TYPE_CHECKING:
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
    from quorumlog.broker.serving.broker_session import BrokerSession

TIMEOUT_MS = 5_000
MOST_BYTES = 1 << 24


def check_producer(producer: str) -> None:
    """Raises BadRequest: a client in such a session could have delayed messages taken for released."""
    if producer.startswith(SYSTEM_PREFIX):
        raise BadRequest(f"sessions that begin with {SYSTEM_PREFIX!r} are the broker's own: {producer}")


class GroupSessions:
    """On the loop."""

    def __init__(self, broker: DLedgerBroker) -> None:
        self._broker = broker

    def open(self, session: BrokerSession, request: OpenSessionRequest) -> None:
        """Raises BadRequest."""
        check_producer(request.producer)

        def told(answer: Connected | LedgerError) -> None:
            if isinstance(answer, LedgerError):
                session.refuse(request.request_id, self._broker.refusal_of(answer))
                return
            session.answer(
                OpenSessionResponse(
                    request_id=request.request_id,
                    opened=answer.opened,
                    epoch=(answer.epoch.index, answer.epoch.term),
                    last_sequence=answer.last_sequence,
                )
            )

        def connect() -> None:
            node = self._broker.member.node()
            ends = None if request.ends is None else Epoch(*request.ends)
            deadline_ms = node.deadline_ms(TIMEOUT_MS)
            node.sessions.connect(request.producer, request.token, ends, deadline_ms, told, session)

        self._broker.member.enter(connect, session)

    def send(self, session: BrokerSession, request: SessionSendRequest, records: RecordBatch) -> None:
        """Raises BadRequest."""
        check_producer(request.producer)
        if not len(records):
            session.refuse(request.request_id, BadRequest("a send has one message at least"))
            return

        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, LedgerError):
                session.refuse(request.request_id, self._broker.refusal_of(outcome))
                return
            stored = self._stored(outcome)
            at = None if stored is None else stored.columns
            session.answer(
                SessionSendResponse(
                    request_id=request.request_id,
                    queue_offsets=b"" if at is None else at.queue_offsets.astype(">i8").tobytes(),
                    positions=b"" if at is None else at.physical_offsets.astype(">i8").tobytes(),
                    store_time_ms=-1 if at is None else int(at.store_times_ms[0]),
                    store_host=self._broker.store_host,
                )
            )

        def append() -> None:
            place = SessionPlace(request.producer, Epoch(*request.epoch), request.sequence)
            self._broker.member.append(
                entries_of(records),
                MACHINE_NAME,
                TIMEOUT_MS,
                done,
                session,
                place=place,
                awaits_results=False,
            )

        self._broker.member.enter(append, session)

    def _stored(self, receipt: AppendReceipt) -> RecordBatch | None:
        """The messages as they stand in the log, whoever appended them, and when; None: they would have
        to be read from the disk."""
        node = self._broker.member.node()
        found: list[RecordBatch] = []
        for part in receipt.parts:
            index, stop = part.first_index, part.first_index + part.count
            while index < stop:
                try:
                    entries = node.readable_range(index, stop, MOST_BYTES)
                except LedgerError:
                    return None
                if not isinstance(entries, EntryBatch):
                    return None
                found.append(records_of(entries))
                index += entries.count
        if len(found) == 1:
            return found[0]
        joined = [each.joined() for each in found]
        sizes = np.concatenate([each.sizes for each in joined])
        return RecordBatch.contiguous(b"".join(bytes(each.buffer) for each in joined), sizes)
