"""DLedgerCommitLog: a `MessageLog` that is the replicated log. What is put is acknowledged once a
majority has it on disk, whoever leads next; `WAIT=false` changes nothing about that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from quorumlog.broker.commit_log.put_turn import PutTurn
from quorumlog.broker.dledger.broker_role import RoleState
from quorumlog.broker.dledger.message_entries import BODY_OFFSET, MACHINE_NAME, entries_of, records_of
from quorumlog.broker.dledger.message_filler import Filled, MessageFiller
from quorumlog.broker.dledger.message_machine import MessageMachines
from quorumlog.broker.message_log import (
    LogRecords,
    PutOutcome,
    PutRequest,
    Role,
    RoleListener,
)
from quorumlog.broker.messages.message import (
    RETRY_PROPERTIES_BYTES,
    PutResult,
    PutStatus,
)
from quorumlog.broker.messages.record import BLANK_BYTES
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.old_log import OldLog
from quorumlog.broker.serving.broker_service import Reads
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BodyTooLarge, LedgerError, OutcomeUnknown, StoreFailure
from quorumlog.node import AppendOutcome, DoorMember
from quorumlog.node.pending_appends import SessionPlace

PUT_TIMEOUT_MS = 5_000
BATCH_BYTES = 16 << 20
"""Of one put at most; it need not fit into a file of the log."""


class DLedgerCommitLog:
    """On the loop, but for reads."""

    def __init__(
        self,
        member: DoorMember,
        filler: MessageFiller,
        machines: MessageMachines,
        reads: Reads,
        state: Callable[[], RoleState],
        refusal: Callable[[LedgerError], LedgerError],
        old_log: OldLog | None = None,
    ) -> None:
        """`refusal`: an error of the log as a client of the broker is to have it."""
        self._member = member
        self._filler = filler
        self._machines = machines
        self._reads = reads
        self._state = state
        self._refusal = refusal
        self._old_log = old_log
        self._listeners: list[RoleListener] = []

    # ---------------------------------------------------------------- MessageLog

    @property
    def min_offset(self) -> int:
        if self._old_log is not None:
            return self._old_log.first_position
        return self._member.node().store.begin.position

    @property
    def max_offset(self) -> int:
        return self._member.node().store.end.position

    @property
    def confirm_offset(self) -> int:
        """Behind the last committed message that is dispatched."""
        machine = self._machines.newest
        return 0 if machine is None else machine.end_position

    @property
    def role(self) -> Role:
        return self._state().role

    def on_role_change(self, listener: RoleListener) -> None:
        self._listeners.append(listener)

    def role_changed(self, state: RoleState) -> None:
        for listener in self._listeners:
            listener(state.role)

    @property
    def store_host(self) -> bytes:
        return self._filler.store_host

    def put_in_session(
        self, records: RecordBatch, place: SessionPlace, done: Callable[[PutOutcome], None]
    ) -> None:
        """Records of one queue, at this place in their producer's session: stored once, however often
        they are put, and `done` gets where they stand. Only on the master; between turns."""
        turn = self._turn_of([PutRequest(records, True, done)])
        if turn.requests:
            self._member.enter(lambda: self._append(turn, place))

    def put(self, requests: Sequence[PutRequest]) -> None:
        limit = self._member.node().config.storage.append_limit_bytes if self._member.is_up else 0
        accepted = []
        for request in requests:
            size = int(request.records.sizes.max(initial=0)) + BODY_OFFSET
            if limit and size > limit:
                request.done(
                    BodyTooLarge(
                        f"a record of {size - BODY_OFFSET} bytes is over the limit of"
                        f" {limit - BODY_OFFSET} (max_entry_bytes and segment_bytes, less the header)"
                    )
                )
            else:
                accepted.append(request)
        turn = self._turn_of(accepted)
        if turn.requests:
            self._member.enter(lambda: self._append(turn))

    def _turn_of(self, requests: Sequence[PutRequest]) -> PutTurn:
        """With room for a retry in each message: one that a consumer could not send back would keep its
        queue waiting, since a retry says in properties where the message belongs."""
        return PutTurn(
            requests,
            BATCH_BYTES + BLANK_BYTES,
            self._filler.takes,
            kept_property_bytes=RETRY_PROPERTIES_BYTES,
        )

    def _append(self, turn: PutTurn, place_in_session: SessionPlace | None = None) -> None:
        batch = entries_of(turn.records)
        filled: list[Filled] = []

        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, AppendReceipt):
                error = self._refusal(outcome)
                for request in turn.requests:
                    request.done(error)
                return
            if filled and len(filled[0].positions) == len(turn.records):
                assert filled[0].first_index == outcome.first_index, (filled[0], outcome)
                self._answer(turn, filled[0])
            else:
                self._find(turn, outcome)

        self._filler.checked = batch  # PutTurn has looked at it
        try:
            self._member.append(
                batch,
                MACHINE_NAME,
                PUT_TIMEOUT_MS,
                done,
                self,
                place=place_in_session,
                filled=lambda place: filled.append(cast(Filled, place)),
                awaits_results=False,
            )
        finally:
            self._filler.checked = None

    def _find(self, turn: PutTurn, receipt: AppendReceipt) -> None:
        """Some of it was stored before: where, the log knows."""
        store = self._member.node().store

        def read() -> Filled:
            records = []
            for part in receipt.parts:
                index, stop_index = part.first_index, part.first_index + part.count
                while index < stop_index:
                    _, batch = store.read_from(index, stop_index, BATCH_BYTES)
                    records.append(records_of(batch).joined())
                    index += batch.count
            found = RecordBatch.contiguous(
                b"".join([each.buffer for each in records]),
                np.concatenate([each.sizes for each in records]),
            ).columns
            times = found.store_times_ms
            return Filled(
                receipt.first_index, found.queue_offsets, found.physical_offsets, int(times[0])
            )

        def answer(found: Filled | LedgerError | StoreFailure) -> None:
            if isinstance(found, Filled):
                self._answer(turn, found)
                return
            (request,) = turn.requests
            request.done(OutcomeUnknown(f"it is stored, and could not be read: {found}"))

        self._reads.submit(read, answer)

    @staticmethod
    def _answer(turn: PutTurn, place: Filled) -> None:
        starts, stops = turn.row_starts.tolist(), turn.row_ends.tolist()
        for request, start, stop in zip(turn.requests, starts, stops, strict=True):
            positions = place.positions[start:stop]
            result = PutResult(
                PutStatus.PUT_OK,
                int(place.queue_offsets[start]),
                int(positions[0]),
                stop - start,
                place.time_ms,
                positions,
            )
            request.done(result)

    # ---------------------------------------------------------------- reading

    def read(self, position: int, stop_position: int) -> LogRecords | None:
        """One record: those that follow lie behind headers, and are found through the queues."""
        size = int.from_bytes(self.read_bytes(position, 4), "big")
        if position + size > min(stop_position, self.confirm_offset) or not size:
            return None
        records = RecordBatch.contiguous(self.read_bytes(position, size), np.array([size]))
        return LogRecords(position, records, position + size)

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        old = b""
        if self._old_log is not None and position < self._old_log.end_position:
            old = self._old_log.read_bytes(position, size_bytes)
            position, size_bytes = position + len(old), size_bytes - len(old)
            if not size_bytes:
                return old
        return old + self._member.node().store.read_bytes(position, size_bytes)

    def stored_offset(self, key: QueueKey) -> int:
        """Behind the last message of a queue that any reader may know of; a slave cannot tell."""
        if self._filler.term is None:
            return (1 << 63) - 1
        return self._filler.next_offsets.get(key, 0)
