"""The producer: batches into the log, a few in flight, and what became of each of them.

`Acknowledged` is what those who break things wait for, whoever produces. `Producer` has no session: a
batch whose outcome is unknown is sent again and counted, since losing rows is worse than repeating them.
A refused one never comes here: the client itself sends it again, for it certainly was not written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from quorumlog import AsyncLedgerClient, OutcomeUnknown

Batch = Sequence[bytes]


class Ack(NamedTuple):
    at_s: float
    """`time.perf_counter` when the answer was there."""
    rows: int
    term: int


class Acknowledged:
    """What a producer was told, and who waits for it."""

    def __init__(self) -> None:
        self.acks: list[Ack] = []
        self.acknowledged_rows = 0
        self._waiters: list[tuple[Callable[[Ack], bool], asyncio.Future[Ack]]] = []

    async def wait_for_rows(self, rows: int) -> None:
        if self.acknowledged_rows < rows:
            await self._wait(lambda ack: self.acknowledged_rows >= rows)

    async def wait_for_term_above(self, term: int) -> Ack:
        """The first acknowledgement of a leader of a later term: answers of the old one may still be on
        their way when it is gone."""
        for ack in self.acks:
            if ack.term > term:
                return ack
        return await self._wait(lambda ack: ack.term > term)

    async def _wait(self, condition: Callable[[Ack], bool]) -> Ack:
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        return await future

    def _acknowledged(self, ack: Ack) -> None:
        self.acks.append(ack)
        self.acknowledged_rows += ack.rows
        waiting = []
        for condition, future in self._waiters:
            if not future.done() and condition(ack):
                future.set_result(ack)
            elif not future.done():
                waiting.append((condition, future))
        self._waiters = waiting


class Producer(Acknowledged):
    """`run()` sends every batch; faults wait for its acknowledgements meanwhile."""

    def __init__(self, client: AsyncLedgerClient, batches: Iterable[Batch], *, in_flight: int) -> None:
        super().__init__()
        self.unknown_batches = 0
        self._client = client
        self._batches: Iterator[Batch] = iter(batches)
        self._in_flight = in_flight

    async def run(self) -> None:
        """Returns once every batch is acknowledged; raises the client's error after its deadline."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._send_batches())

    async def _send_batches(self) -> None:
        for batch in self._batches:  # shared: each of the tasks takes the next one
            await self._send(batch)

    async def _send(self, batch: Batch) -> None:
        while True:
            try:
                receipt = await self._client.append_batch(batch)
            except OutcomeUnknown:
                self.unknown_batches += 1
                continue
            assert receipt.count == len(batch), (receipt, len(batch))
            self._acknowledged(Ack(time.perf_counter(), receipt.count, receipt.term))
            return
