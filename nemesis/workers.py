"""Workers: several sequential clients, as threads or as tasks. Half of them share one connection to the
group, the others are producers with a client each (`session_workers`).

`work_in_threads` (`LedgerClient`) and `work_in_tasks` (`AsyncLedgerClient`) are what one client process
does from its first connection to its end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nemesis.history import READ
from nemesis.workload import APPEND, APPEND_STREAM, Workload
from quorumlog import (
    AsyncLedgerClient,
    LedgerClient,
    LedgerError,
    MemberStatusRow,
    OutcomeUnknown,
    Refused,
    connect,
    connect_async,
)

TIMEOUT_MS = 3000
"""Of one append: short, so that a fault that lasts seconds also shows refusals."""
LOOK_S = 0.2
"""Between two looks at whether it is time to stop."""

IsOver = Callable[[], bool]


def work_in_threads(
    servers: str, member_ids: Sequence[str], workloads: Sequence[Workload], ready: Any, is_over: IsOver
) -> None:
    """Until `is_over`. `ready` is released when the client is connected."""
    # They are workers of this kind themselves.
    from nemesis.session_workers import SessionWorker, by_turns

    stopping = threading.Event()
    plain, in_sessions = by_turns(workloads)
    with connect(servers, timeout_ms=TIMEOUT_MS) as log:
        greeted: set[str] = set()
        while greeted < set(member_ids):
            greeted |= _reachable(log.status())
        ready.release()
        with ThreadPoolExecutor(len(workloads)) as pool:
            workers = [pool.submit(Worker(log, work, stopping).run) for work in plain]
            workers += [pool.submit(SessionWorker(servers, work, stopping).run) for work in in_sessions]
            while not is_over() and not any(worker.done() for worker in workers):
                stopping.wait(LOOK_S)
            stopping.set()
        for worker in workers:
            worker.result()


async def work_in_tasks(
    servers: str, member_ids: Sequence[str], workloads: Sequence[Workload], ready: Any, is_over: IsOver
) -> None:
    from nemesis.session_workers import AsyncSessionWorker, by_turns

    stopping = asyncio.Event()
    plain, in_sessions = by_turns(workloads)
    async with connect_async(servers, timeout_ms=TIMEOUT_MS) as log, asyncio.TaskGroup() as group:
        greeted: set[str] = set()
        while greeted < set(member_ids):
            greeted |= _reachable(await log.status())
        ready.release()
        for work in plain:
            group.create_task(AsyncWorker(log, work, stopping).run())
        for work in in_sessions:
            group.create_task(AsyncSessionWorker(servers, work, stopping).run())
        while not is_over():
            await asyncio.sleep(LOOK_S)
        stopping.set()


def _reachable(rows: list[MemberStatusRow]) -> set[str]:
    """Members know each other by the proxy's addresses and tell those to clients. A client stays with
    the address at which a member greeted it first: so it greets them all before it asks for anything."""
    return {row.id for row in rows if row.reachable}


class Worker:
    def __init__(self, log: LedgerClient, work: Workload, stopping: threading.Event) -> None:
        self._log = log
        self._work = work
        self._stopping = stopping

    def run(self) -> None:
        while not self._stopping.is_set():
            verb = self._work.next_verb()
            if verb == READ:
                self._read()
            elif verb == APPEND_STREAM:
                self._append_stream()
            else:
                self._append(verb)
            self._stopping.wait(self._work.next_pause_s())

    def _append(self, verb: str) -> None:
        batch = self._work.next_batch(verb)
        try:
            if verb == APPEND:
                receipt = self._log.append(batch.bodies[0])
            else:
                receipt = self._log.append_batch(batch.bodies)
        except OutcomeUnknown:
            self._work.appended(verb, batch, None)
        except Refused:
            self._work.appended(verb, batch, False)
        else:
            self._work.appended(verb, batch, True, parts=receipt.parts)

    def _append_stream(self) -> None:
        work = self._work.next_stream()
        stream = self._log.append_stream(work.batches())
        try:
            for receipt in stream:
                work.acknowledged(receipt.parts)
        except LedgerError:
            work.failed(stream.progress.unwritten_records)

    def _read(self) -> None:
        asked = self._work.next_range()
        try:
            found = list(
                self._log.read(asked.first_index, asked.stop_index, from_member=asked.from_member)
            )
        except LedgerError:
            self._work.was_read(asked, None)
        else:
            self._work.was_read(asked, found)


class AsyncWorker:
    """A task. Now and then it gives an append up, which leaves the connection to the others."""

    def __init__(self, log: AsyncLedgerClient, work: Workload, stopping: asyncio.Event) -> None:
        self._log = log
        self._work = work
        self._stopping = stopping

    async def run(self) -> None:
        while not self._stopping.is_set():
            verb = self._work.next_verb()
            if verb == READ:
                await self._read()
            elif verb == APPEND_STREAM:
                await self._append_stream()
            else:
                await self._append(verb)
            await asyncio.sleep(self._work.next_pause_s())

    async def _append(self, verb: str) -> None:
        batch = self._work.next_batch(verb)
        try:
            async with asyncio.timeout(self._work.next_patience_s()):
                if verb == APPEND:
                    receipt = await self._log.append(batch.bodies[0])
                else:
                    receipt = await self._log.append_batch(batch.bodies)
        except (OutcomeUnknown, TimeoutError):
            self._work.appended(verb, batch, None)
        except Refused:
            self._work.appended(verb, batch, False)
        else:
            self._work.appended(verb, batch, True, parts=receipt.parts)

    async def _append_stream(self) -> None:
        work = self._work.next_stream()
        stream = self._log.append_stream(work.batches())
        try:
            async for receipt in stream:
                work.acknowledged(receipt.parts)
        except LedgerError:
            work.failed(stream.progress.unwritten_records)

    async def _read(self) -> None:
        asked = self._work.next_range()
        found = self._log.read(asked.first_index, asked.stop_index, from_member=asked.from_member)
        try:
            self._work.was_read(asked, [entry async for entry in found])
        except LedgerError:
            self._work.was_read(asked, None)
