"""FailoverService: the rules on an event loop: it asks the coordinator, and tells the broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from quorumlog.broker.failover.coordinator import Coordinator
from quorumlog.broker.failover.failover_rules import Answer, FailoverOptions, FailoverRules, Phase
from quorumlog.broker.failover.failover_steps import OnDisk, Request
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.wire import FailoverResponse
from quorumlog.errors import LedgerError, StoreFailure

log = logging.getLogger("quorumlog.broker")

TICKS_PER_LEASE = 50
MOST_TICK_MS = 100.0
REQUESTS_PER_LEASE = 4
"""So long is one answer waited for: a part of a lease."""
WATCH_AGAIN_S = 0.5
RESIGN_S = 2.0


def boot_clock_ms() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


class FailoverService:
    def __init__(
        self,
        broker: Replica,
        coordinator: Coordinator,
        options: FailoverOptions,
        *,
        begins: bool = False,
        clock: Callable[[], float] = boot_clock_ms,
    ) -> None:
        """`begins`: see `FailoverRules`. From here on the broker acknowledges nothing until it leads."""
        self._broker = broker
        self._coordinator = coordinator
        self._clock = clock
        self.rules = FailoverRules(
            broker,
            options,
            clock(),
            self._start,
            begins=begins,
            relays_renewals=coordinator.relays_renewals,
        )
        self._request_s = options.lease_ms / REQUESTS_PER_LEASE / 1000
        self._tick_s = min(MOST_TICK_MS, options.lease_ms / TICKS_PER_LEASE) / 1000
        self._disk = ThreadPoolExecutor(1, "broker-failover")
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        broker.may_acknowledge = lambda: self.rules.may_acknowledge(clock())
        broker.stop_acknowledging()

    def start(self, failed: Callable[[StoreFailure], None]) -> None:
        """On the loop that runs."""
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._spawn(self._watch())
        self._tick()

    def status(self, request_id: int) -> FailoverResponse:
        rules, record = self.rules, self.rules.record
        return FailoverResponse(
            request_id=request_id,
            phase=rules.phase.value,
            epoch=0 if record is None else record.epoch,
            master="" if record is None else record.master.id,
            lease_left_ms=int(rules.lease_left_ms(self._clock())),
            in_sync_set=[] if record is None else sorted(record.in_sync),
            problem=rules.problem,
        )

    async def stop(self) -> None:
        """A master resigns, so that nobody waits for the end of its lease."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_closed = True
        self._broker.stop_acknowledging()
        self._broker.may_acknowledge = lambda: False
        if self.rules.phase is Phase.LEADING:
            with suppress(LedgerError, TimeoutError):
                await asyncio.wait_for(self._coordinator.revoke(self.rules.lease), RESIGN_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._coordinator.close()
        self._disk.shutdown(wait=False, cancel_futures=True)

    def resign(self) -> None:
        """Another member of the in-sync set may lead, or this one again."""
        self.rules.resign(self._clock())

    # ---------------------------------------------------------------- the loop

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tick(self) -> None:
        if self._is_closed:
            return
        self.rules.tick(self._clock())
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    async def _watch(self) -> None:
        while True:
            with suppress(LedgerError):
                await self._coordinator.watch(self._changed)
            await asyncio.sleep(WATCH_AGAIN_S)

    def _changed(self) -> None:
        if not self._is_closed:
            self.rules.changed(self._clock())

    def _start(self, step: Request | OnDisk) -> None:
        self._spawn(self._carry_out(step) if isinstance(step, OnDisk) else self._ask(step))

    async def _ask(self, request: Request) -> None:
        answer: Answer = None
        error = ""
        try:
            async with asyncio.timeout(self._request_s):
                answer = await request.ask(self._coordinator)
        except TimeoutError:
            error = "no answer in time"
        except LedgerError as failure:
            error = str(failure)
        if not self._is_closed:
            self.rules.answered(request, answer, self._clock(), error)
            self.rules.tick(self._clock())

    async def _carry_out(self, step: OnDisk) -> None:
        """One after the other, in the order in which they were asked for: the thread has a queue."""
        error = ""
        try:
            await self._loop.run_in_executor(self._disk, partial(step.do, self._broker))
        except StoreFailure as failure:
            self._failed(failure)
            error = str(failure)
        except LedgerError as refused:
            error = str(refused)
        log.warning("%s%s", step, f": {error}" if error else "")
        if not self._is_closed:
            self.rules.done(step, self._clock(), error)
