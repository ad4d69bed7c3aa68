"""Producers' sessions of the replicated log: a message sent in one is stored once, however often it is
sent.

Delayed messages are released in such sessions, too. A level has one in which a message's number is its
offset in the level's queue. So the log itself records how far each level is released, and a new master,
or one whose last append is unknown, releases nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.dledger.message_machine import entries_of, records_of
from quorumlog.broker.group_commands import SYSTEM_PREFIX, SkipDelayed
from quorumlog.broker.groups.rebalancer import DoneCallback, OffsetCallback
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store.dispatch import MESSAGES
from quorumlog.broker.wire import (
    OpenSessionRequest,
    OpenSessionResponse,
    SessionSendRequest,
    SessionSendResponse,
)
from quorumlog.broker.wire import records_of as records_in
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BadRequest, LedgerError, ProducerExpired
from quorumlog.log_state.control_entries import ProducerEpoch
from quorumlog.net.frame import Frame
from quorumlog.node.pending_appends import AppendOutcome, SessionPlace
from quorumlog.node.producer_sessions import KnownProducer, ProducerConnected

if TYPE_CHECKING:
    from quorumlog.broker.broker_port import BrokerSession
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker

TIMEOUT_MS = 5_000
MOST_BYTES = 1 << 24


def check_producer(producer: str) -> None:
    """Raises BadRequest: a client in such a session could have delayed messages taken for released."""
    if producer.startswith(SYSTEM_PREFIX):
        raise BadRequest(f"sessions that begin with {SYSTEM_PREFIX!r} are the broker's own: {producer}")


class SendSessions:
    """On the loop."""

    def __init__(self, broker: DLedgerBroker) -> None:
        self._broker = broker

    def request(
        self, session: BrokerSession, message: OpenSessionRequest | SessionSendRequest, frame: Frame
    ) -> None:
        """Raises BadRequest, TopicNotPermitted."""
        check_producer(message.producer)
        if isinstance(message, OpenSessionRequest):
            self._open(session, message)
            return
        records = records_in(frame)
        self._broker.topics_table.check_writes(records)
        if not len(records):
            raise BadRequest("a send has one message at least")
        self._send(session, message, records)

    def _open(self, session: BrokerSession, request: OpenSessionRequest) -> None:

        def on_connected(answer: ProducerConnected | LedgerError) -> None:
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
            ends = None if request.ends is None else ProducerEpoch(*request.ends)
            deadline_ms = node.deadline_ms(TIMEOUT_MS)
            node.sessions.connect(
                request.producer, request.token, ends, deadline_ms, on_connected, session
            )

        self._broker.member.enter(connect, session)

    def _send(self, session: BrokerSession, request: SessionSendRequest, records: RecordBatch) -> None:
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
            place = SessionPlace(request.producer, ProducerEpoch(*request.epoch), request.sequence)
            self._broker.member.append(
                *(entries_of(records), MESSAGES, TIMEOUT_MS, done, session),
                place=place,
                awaits_results=False,
            )

        self._broker.member.enter(append, session)

    def _stored(self, receipt: AppendReceipt) -> RecordBatch | None:
        """The messages as they stand in the log, with their producers, and when; None: they would have
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


def session_of(level: int, begin: int) -> str:
    """`begin`: offset from which its numbers count."""
    return f"{SYSTEM_PREFIX}SCHEDULE%{level}@{begin}"


@dataclass(eq=False)
class SessionReleases:
    _broker: DLedgerBroker
    _token: Callable[[], bytes]
    _epochs: dict[int, ProducerEpoch] = field(default_factory=dict)

    def lead(self) -> None:
        self._epochs.clear()

    def begin_of(self, level: int) -> int:
        """Where it begins by the replicated state."""
        return self._broker.groups.feed.state.delayed.get(level, 0)

    def ask(self, level: int, begin: int, on_offset: OffsetCallback) -> None:
        def shown(answer: KnownProducer | LedgerError) -> None:
            if isinstance(answer, KnownProducer):
                on_offset(begin + answer.session.last_sequence + 1)
            elif isinstance(answer, ProducerExpired):
                on_offset(begin)  # nothing was ever released
            else:
                on_offset(answer)

        member = self._broker.member
        member.enter(lambda: member.node().sessions.show(session_of(level, begin), shown, self))

    def open(self, level: int, begin: int, on_offset: OffsetCallback) -> None:
        self._broker.member.enter(lambda: self._connect(level, begin, None, on_offset))

    def _connect(
        self, level: int, begin: int, ends: ProducerEpoch | None, on_offset: OffsetCallback
    ) -> None:
        """The session's numbers are certain then: it ends whatever an earlier one had on its way."""

        def connected(answer: ProducerConnected | LedgerError) -> None:
            if isinstance(answer, LedgerError):
                on_offset(answer)
            elif not answer.opened:
                self._connect(level, begin, answer.epoch, on_offset)
            else:
                self._epochs[level] = answer.epoch
                on_offset(begin + answer.last_sequence + 1)

        node = self._broker.member.node()
        deadline_ms = node.deadline_ms(TIMEOUT_MS)
        session = session_of(level, begin)
        node.sessions.connect(session, self._token(), ends, deadline_ms, connected, self)

    def release(
        self, level: int, begin: int, offset: int, records: RecordBatch, done: DoneCallback
    ) -> None:
        place = SessionPlace(session_of(level, begin), self._epochs[level], offset - begin)

        def appended(outcome: AppendOutcome) -> None:
            done(None if isinstance(outcome, AppendReceipt) else outcome)

        def append() -> None:
            self._broker.member.append(
                *(entries_of(records), MESSAGES, TIMEOUT_MS, appended, self),
                place=place,
                awaits_results=False,
            )

        self._broker.member.enter(append)

    def skip(self, level: int, begin: int, to_offset: int) -> None:
        self._broker.propose(lambda: SkipDelayed(level, begin, to_offset), lambda outcome: None)
