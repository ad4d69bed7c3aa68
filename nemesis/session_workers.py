"""Workers with a session of their own: programs that append until they know that it is in the log.

The numbers of a worker's values are the sequences of its producer. What is unknown or refused is asked
for again under the same numbers, also behind the end of the faults, so that nothing is unknown at the
end. Now and then a worker leaves its client, as a killed program would, and the next one asks what is in
the log.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from nemesis.workers import LOOK_S, TIMEOUT_MS, AsyncWorker, Worker
from nemesis.workload import APPEND_STREAM, Batch, Workload
from quorumlog import (
    AsyncLedgerClient,
    LedgerClient,
    LedgerError,
    OutcomeUnknown,
    ProducerExpired,
    ProducerFenced,
    Refused,
    SequenceGap,
    connect,
    connect_async,
)

PATIENCE_S = 30.0
"""After the last fault everything is known within it."""
_LEAVES = 0.02
"""So many appends are the first of a program that was started anew."""
_NEVER = (ProducerFenced, ProducerExpired, SequenceGap)
"""Nobody else has this producer's id, and it leaves no number out."""


class _Patience:
    """How long an append is asked for again."""

    def __init__(self) -> None:
        self._stop_s: float | None = None

    def is_over(self, is_stopping: bool) -> bool:
        if is_stopping and self._stop_s is None:
            self._stop_s = time.monotonic() + PATIENCE_S
        return self._stop_s is not None and time.monotonic() > self._stop_s


class SessionWorker(Worker):
    def __init__(self, servers: str, work: Workload, stopping: threading.Event) -> None:
        self._servers = servers
        self._patience = _Patience()
        super().__init__(self._connected(work), work, stopping)

    def _connected(self, work: Workload) -> LedgerClient:
        return connect(self._servers, timeout_ms=TIMEOUT_MS, producer_id=work.name)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._log.close()

    def _append(self, verb: str) -> None:
        if self._work.random.random() < _LEAVES:
            self._start_anew()
        self._append_surely(verb, self._work.next_batch(verb))

    def _append_surely(self, verb: str, batch: Batch) -> None:
        tries = 1
        while True:
            try:
                receipt = self._log.append_batch(batch.bodies, sequence=batch.value)
            except (OutcomeUnknown, Refused) as error:
                if isinstance(error, _NEVER):
                    raise
                if self._patience.is_over(self._stopping.is_set()):
                    self._work.appended(verb, batch, None)
                    return
                tries += 1
                time.sleep(LOOK_S)
            else:
                self._work.appended(verb, batch, True, parts=receipt.parts, tries=tries)
                return

    def _append_stream(self) -> None:
        work = self._work.next_stream()
        stream = self._log.append_stream(work.batches())
        try:
            for receipt in stream:
                work.acknowledged(receipt.parts)
        except (OutcomeUnknown, Refused) as error:
            if isinstance(error, _NEVER):
                raise
            for batch in work.left():
                self._append_surely(APPEND_STREAM, batch)

    def _start_anew(self) -> None:
        self._log.close()
        self._log = self._connected(self._work)
        call_ns = time.monotonic_ns()
        try:
            last_sequence = self._log.last_sequence()
        except LedgerError:
            return
        self._work.was_told_last(last_sequence, call_ns)


class AsyncSessionWorker(AsyncWorker):
    """A task. It also gives appends up in the middle, and begins anew before it knows of them."""

    def __init__(self, servers: str, work: Workload, stopping: asyncio.Event) -> None:
        self._servers = servers
        self._patience = _Patience()
        super().__init__(self._connected(work), work, stopping)

    def _connected(self, work: Workload) -> AsyncLedgerClient:
        return connect_async(self._servers, timeout_ms=TIMEOUT_MS, producer_id=work.name)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._log.close()

    async def _append(self, verb: str) -> None:
        await self._append_surely(verb, self._work.next_batch(verb))

    async def _append_surely(self, verb: str, batch: Batch) -> None:
        tries = 1
        while True:
            try:
                async with asyncio.timeout(self._work.next_patience_s()):
                    receipt = await self._log.append_batch(batch.bodies, sequence=batch.value)
            except TimeoutError:
                tries += 1
                if self._work.random.random() < 0.5:
                    await self._start_anew()
            except (OutcomeUnknown, Refused) as error:
                if isinstance(error, _NEVER):
                    raise
                if self._patience.is_over(self._stopping.is_set()):
                    self._work.appended(verb, batch, None)
                    return
                tries += 1
                await asyncio.sleep(LOOK_S)
            else:
                self._work.appended(verb, batch, True, parts=receipt.parts, tries=tries)
                return

    async def _append_stream(self) -> None:
        work = self._work.next_stream()
        stream = self._log.append_stream(work.batches())
        try:
            async for receipt in stream:
                work.acknowledged(receipt.parts)
        except (OutcomeUnknown, Refused) as error:
            if isinstance(error, _NEVER):
                raise
            for batch in work.left():
                await self._append_surely(APPEND_STREAM, batch)

    async def _start_anew(self) -> None:
        left, self._log = self._log, self._connected(self._work)
        call_ns = time.monotonic_ns()
        try:
            last_sequence = await self._log.last_sequence()
        except LedgerError:
            pass
        else:
            self._work.was_told_last(last_sequence, call_ns)
        await left.close()


def by_turns(workloads: Sequence[Workload]) -> tuple[list[Workload], list[Workload]]:
    """Who shares the process's client, and who has a session."""
    plain = [work for work in workloads if not work.in_session]
    return plain, [work for work in workloads if work.in_session]
