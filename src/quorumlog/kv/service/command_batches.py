"""CommandBatches: what clients of one turn of the loop want to change becomes one append of the log, and
so one apply and one write of the engine. One whose answer may be large has an append of its own, as the
answers to an append are held together, and nobody else is to lose his."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError
from quorumlog.kv.store.machine import MACHINE_NAME
from quorumlog.node import AppendOutcome, DoorMember

BATCH_COMMANDS = 1024
BATCH_BYTES = 2 << 20
TIMEOUT_MS = 5_000

Done = Callable[[bytes | LedgerError], None]
"""Gets what the machine answers, or the refusal of the log."""


class _Waiting(NamedTuple):
    body: bytes
    done: Done
    is_alone: bool


class CommandBatches:
    def __init__(self, member: DoorMember) -> None:
        self._member = member
        self._waiting: list[_Waiting] = []

    def add(self, body: bytes, done: Done, *, alone: bool = False) -> None:
        if not self._waiting:
            self._member.enter(self._append)
        self._waiting.append(_Waiting(body, done, alone))

    def discard(self) -> None:
        self._waiting.clear()

    def _append(self) -> None:
        waiting, self._waiting = self._waiting, []
        start = size_bytes = 0
        for place, each in enumerate(waiting):
            if place > start and (
                place - start >= BATCH_COMMANDS
                or size_bytes + len(each.body) > BATCH_BYTES
                or each.is_alone
                or waiting[place - 1].is_alone
            ):
                self._append_part(waiting[start:place])
                start, size_bytes = place, 0
            size_bytes += len(each.body)
        if waiting:
            self._append_part(waiting[start:])

    def _append_part(self, part: list[_Waiting]) -> None:
        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, AppendReceipt):
                for each in part:
                    each.done(outcome)
                return
            assert not outcome.failures, outcome.failures
            for each, result in zip(part, outcome.results, strict=True):
                assert result is not None
                each.done(result)

        batch = EntryBatch.from_bodies([each.body for each in part])
        self._member.append(batch, MACHINE_NAME, TIMEOUT_MS, done, self)
