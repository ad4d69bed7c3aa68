"""Latency at a given rate: requests leave when they are due, whatever became of those before them.

A closed loop asks a group that stands still for nothing, so the requests that would have waited are
missing from its percentiles (coordinated omission). Here arrivals are drawn beforehand from a Poisson
process, and a latency counts from the moment at which its request was due, also if the sender was late.

Rates are shares of the closed-loop peak measured just before. At twice the peak, the last one, the
figures say how much is still accepted (goodput), after what time, and how much is refused.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import math
import os
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import uvloop
from hdrh.histogram import HdrHistogram
from rich.table import Table

from quorumlog.batch import EntryBatch
from quorumlog.bench.figures import PromisedFigure, target_rows, without_nan
from quorumlog.bench.raw_writer import RawConnection, leader_connections
from quorumlog.bench.running_group import RunningGroup
from quorumlog.bench.workloads import APPEND_LOADS, AppendLoad, bodies_of, measure, members_watched
from quorumlog.cli.bench_tables import figure_table, number
from quorumlog.errors import LedgerError, OutcomeUnknown, Overloaded
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import AnyFrameMessage, encode_frame
from quorumlog.wire.client_messages import AppendRequest, AppendResponse

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
OVERLOAD = 2.0
OVERLOAD_TARGETS = (PromisedFigure("goodput_share", 0.8, True), PromisedFigure("p99_ms", 2000, False))
"""Accepted requests wait behind at most `max_uncommitted_bytes`: about a second of single records."""
TICK_LIMIT = 64
"""Requests that leave in one tick: a sender that is behind still takes the answers in between."""
WARM_UP_SHARE = 0.25
"""Of the measured seconds, before them, at the same rate."""
TICK_NS = 200_000
"""How often the sender looks what is due; the timers of event loops are five times as coarse."""
DRAIN_SECONDS = 10.0
"""For the last answers. A leader answers within five."""
CLIENT_TIMEOUT_MS = 5000
HIGHEST_US = 60_000_000
SIGNIFICANT_DIGITS = 3
PERCENTILES = (50.0, 90.0, 99.0, 99.9)

Answered = Callable[[int, LedgerError | None], None]
"""Number of a request, and the error if it has one."""
Send = Callable[[int], None]


class OpenLoad(NamedTuple):
    name: str
    closed: AppendLoad
    """Whose throughput is the peak, and whose records are sent."""
    connections: int
    """0: one AsyncLedgerClient, a task for each append. Otherwise bare connections, in turn."""


OPEN_LOADS = (
    OpenLoad("open-client", APPEND_LOADS["concurrent-appends"], 0),
    OpenLoad("open-256-connections", APPEND_LOADS["256-writers"], 256),
    OpenLoad("open-batches", APPEND_LOADS["batches"], 8),
)
OPEN_LOADS_BY_NAME = {load.name: load for load in OPEN_LOADS}


@dataclass(slots=True)
class OpenMeasured:
    """Rates in records/s. Percentiles are of accepted requests, NaN where there are none."""

    load: str
    share_of_peak: float
    seed: int
    seconds: float
    peak_per_second: float
    """Of the closed loop in the same run."""
    offered_per_second: float
    accepted_per_second: float
    """Goodput: acknowledged inside the measured window."""
    goodput_share: float
    """Of the peak."""
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    requests: int
    """Due inside the measured window; each of them is counted once more below, or was accepted."""
    overloaded: int
    """Refused with Overloaded."""
    refused: int
    """With anything else."""
    unknown: int
    errors: dict[str, int]
    """All three by the name of their class."""
    unanswered: int
    sender_late_p99_ms: float
    """How late requests left. Where this is not small, the load generator was the limit."""
    cpu_seconds_per_million: float
    """Of the members, for each million records accepted."""
    histogram: str
    """HdrHistogram V2, compressed, base64; microseconds."""

    @property
    def name(self) -> str:
        return f"{self.load} at {self.share_of_peak:.0%}"

    def figure(self, name: str) -> float:
        return float(getattr(self, name))

    @property
    def targets(self) -> tuple[PromisedFigure, ...]:
        return OVERLOAD_TARGETS if self.share_of_peak >= OVERLOAD else ()

    def row(self) -> dict[str, Any]:
        figures = without_nan(asdict(self))
        return {"workload": figures.pop("load"), **figures, "targets": target_rows(self)}


def run_open_loads(
    loads: Sequence[OpenLoad],
    group: RunningGroup,
    seconds: float,
    seed: int,
    report: Callable[[str], None],
    *,
    shares: Sequence[float] = (*SHARES, OVERLOAD),
) -> Iterator[OpenMeasured]:
    """For each load its closed-loop peak, then every rate; `report` is told what begins.

    Raises what the client raises.
    """
    # A full collection takes 50 to 100 ms, in which requests are due and none leaves: what is here
    # before the first one is left out of it.
    gc.collect()
    gc.freeze()
    for load in loads:
        report(f"{load.name}: its peak, {seconds:g} s")
        peak = uvloop.run(measure(load.closed, group, seconds)).records_per_second
        for share in shares:
            report(f"{load.name}: {share:.0%} of {peak:,.0f}/s, {seconds:g} s")
            yield uvloop.run(_measure(load, group, peak, share, seconds, seed))


def arrivals_s(per_second: float, seconds: float, seed: int) -> npt.NDArray[np.float64]:
    """When requests are due, from 0 to `seconds`: a Poisson process, the same for the same seed."""
    expected = per_second * seconds
    # So many more that running out has a probability below 1e-20.
    count = int(expected + 10 * math.sqrt(expected) + 20)
    due_s = np.cumsum(np.random.default_rng(seed).exponential(1 / per_second, count))
    within: npt.NDArray[np.float64] = due_s[due_s < seconds]
    return within


class Tally:
    """What became of every request, by its number: 1 is the first to be due."""

    def __init__(
        self, due_s: npt.NDArray[np.float64], window_begin_s: float, window_stop_s: float
    ) -> None:
        self._due_s: list[float] = due_s.tolist()
        self._window = (window_begin_s, window_stop_s)
        self.latencies_s = array("d")
        self.lateness_s = array("d")
        self.accepted = 0
        """Before, inside and after the window."""
        self.accepted_in_window = 0
        self.errors: Counter[str] = Counter()
        """By the name of their class."""
        self.requests: int = sum(window_begin_s <= due < window_stop_s for due in self._due_s)
        self.overloaded = 0
        self.unknown = 0
        self.open = len(self._due_s)

    def sent(self, number: int, at_s: float) -> None:
        if self._counts(number):
            self.lateness_s.append(at_s - self._due_s[number - 1])

    def answered(self, number: int, at_s: float, error: LedgerError | None) -> None:
        self.open -= 1
        if error is None:
            self.accepted += 1
            self.accepted_in_window += self._window[0] <= at_s < self._window[1]
        if not self._counts(number):
            return
        if error is None:
            self.latencies_s.append(at_s - self._due_s[number - 1])
        else:
            self.errors[type(error).__name__] += 1
            self.overloaded += isinstance(error, Overloaded)
            self.unknown += isinstance(error, OutcomeUnknown)

    @property
    def unanswered(self) -> int:
        return self.requests - len(self.latencies_s) - self.errors.total()

    def _counts(self, number: int) -> bool:
        begin_s, stop_s = self._window
        due_s = self._due_s[number - 1]
        return begin_s <= due_s < stop_s


async def _measure(
    load: OpenLoad, group: RunningGroup, peak: float, share: float, seconds: float, seed: int
) -> OpenMeasured:
    warm_up_s = seconds * WARM_UP_SHARE
    per_second = max(peak * share / load.closed.batch_records, 1.0)
    due_s = arrivals_s(per_second, warm_up_s + seconds, seed)
    tally = Tally(due_s, warm_up_s, warm_up_s + seconds)
    answered = asyncio.Event()
    began_s = math.inf

    def on_answer(number: int, error: LedgerError | None) -> None:
        tally.answered(number, time.perf_counter() - began_s, error)
        if not tally.open:
            answered.set()

    senders = _client_sender if load.connections == 0 else _connection_senders
    async with senders(load, group, on_answer) as send, members_watched(group.pids) as watched:
        began_s = time.perf_counter()
        await _send_when_due(due_s.tolist(), began_s, send, tally)
        with suppress(TimeoutError):  # what is not there by then is counted as unanswered
            async with asyncio.timeout(DRAIN_SECONDS):
                if tally.open:
                    await answered.wait()
    return _measured(load, peak, share, seconds, seed, tally, watched.cpu_seconds)


async def _send_when_due(due_s: list[float], began_s: float, send: Send, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()
    due = iter(enumerate(due_s, 1))
    head = next(due, None)

    def tick() -> None:
        nonlocal head
        os.read(timer, 8)
        now_s = time.perf_counter() - began_s
        for _ in range(TICK_LIMIT):
            if head is None or head[1] > now_s:
                break
            send(head[0])
            tally.sent(head[0], now_s)
            head = next(due, None)
        if head is None and not finished.done():
            finished.set_result(None)

    timer = _ticking_timer()
    loop.add_reader(timer, tick)
    try:
        await finished
    finally:
        loop.remove_reader(timer)
        os.close(timer)


def _ticking_timer() -> int:
    """A descriptor that is readable every TICK_NS (`os.timerfd_create` comes with Python 3.13)."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = int(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    interval_and_first = (ctypes.c_long * 4)(0, TICK_NS, 0, TICK_NS)
    if timer < 0 or libc.timerfd_settime(timer, 0, interval_and_first, None):
        raise OSError(ctypes.get_errno(), "no timer")
    return timer


@asynccontextmanager
async def _client_sender(
    load: OpenLoad, group: RunningGroup, on_answer: Answered
) -> AsyncIterator[Send]:
    body = bodies_of(1, load.closed.body_bytes)[0]
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    async with group.connect() as client:
        await client.append(body)

        async def append(number: int) -> None:
            refusal: LedgerError | None = None
            try:
                await client.append(body, timeout_ms=CLIENT_TIMEOUT_MS)
            except LedgerError as error:
                refusal = error
            on_answer(number, refusal)

        def send(number: int) -> None:
            task = loop.create_task(append(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        yield send
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RawSender(RawConnection):
    """Sends the same entries whenever it is told to; `on_answer(number, error)` for each answer, in
    whatever order they come. If the connection is lost, the outcome of what is open on it is unknown."""

    def __init__(
        self, group: str, batch: EntryBatch, on_answer: Callable[[int, LedgerError | None], None]
    ) -> None:
        super().__init__(group)
        self._group = group
        self._batch = batch
        self._on_answer = on_answer
        self._open: set[int] = set()
        self._lost: LedgerError | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def send(self, number: int) -> None:
        """`number`: above 0, names the request."""
        if self._lost is not None:
            self._on_answer(number, self._lost)
            return
        self._open.add(number)
        self._transport.writelines(
            encode_frame(self._group, AppendRequest(request_id=number), self._batch)
        )

    def _answered(self, message: AnyFrameMessage) -> None:
        if isinstance(message, (AppendResponse, ErrorResponse)) and message.request_id in self._open:
            self._open.discard(message.request_id)
            error = error_of(message) if isinstance(message, ErrorResponse) else None
            self._on_answer(message.request_id, error)

    def _fail(self, error: LedgerError) -> None:
        super()._fail(error)
        self._lost = error
        for each in list(self._open):
            self._open.discard(each)
            self._on_answer(each, OutcomeUnknown(str(error)))

    def close(self) -> None:
        """What is open is not answered any more."""
        self._open.clear()
        super().close()


@asynccontextmanager
async def _connection_senders(
    load: OpenLoad, group: RunningGroup, on_answer: Answered
) -> AsyncIterator[Send]:
    batch = EntryBatch.from_bodies(bodies_of(load.closed.batch_records, load.closed.body_bytes))
    make = functools.partial(RawSender, group.name, batch, on_answer)
    async with leader_connections(make, load.connections, group) as senders:
        yield lambda number: senders[number % len(senders)].send(number)


def _measured(
    load: OpenLoad,
    peak: float,
    share: float,
    seconds: float,
    seed: int,
    tally: Tally,
    cpu_seconds: float,
) -> OpenMeasured:
    records = load.closed.batch_records
    accepted_per_second = tally.accepted_in_window * records / seconds
    histogram = HdrHistogram(1, HIGHEST_US, SIGNIFICANT_DIGITS)
    for latency_s in tally.latencies_s:
        histogram.record_value(min(max(int(latency_s * 1e6), 1), HIGHEST_US))
    found = len(tally.latencies_s)
    p50_ms, p90_ms, p99_ms, p999_ms = (
        histogram.get_value_at_percentile(q) / 1000 if found else math.nan for q in PERCENTILES
    )
    late_s = np.frombuffer(tally.lateness_s) if tally.lateness_s else np.array([math.nan])
    accepted = tally.accepted * records
    return OpenMeasured(
        load=load.name,
        share_of_peak=share,
        seed=seed,
        seconds=seconds,
        peak_per_second=peak,
        offered_per_second=tally.requests * records / seconds,
        accepted_per_second=accepted_per_second,
        goodput_share=accepted_per_second / peak if peak else math.nan,
        p50_ms=p50_ms,
        p90_ms=p90_ms,
        p99_ms=p99_ms,
        p999_ms=p999_ms,
        max_ms=max(tally.latencies_s) * 1000 if found else math.nan,
        requests=tally.requests,
        overloaded=tally.overloaded,
        refused=tally.errors.total() - tally.overloaded - tally.unknown,
        unknown=tally.unknown,
        errors=dict(tally.errors),
        unanswered=tally.unanswered,
        sender_late_p99_ms=float(np.percentile(late_s, 99)) * 1000,
        cpu_seconds_per_million=cpu_seconds / accepted * 1e6 if accepted else math.nan,
        histogram=histogram.encode().decode(),
    )


def open_table_of(results: Sequence[OpenMeasured]) -> Table:
    headings = ("of peak", "offered/s", "accepted/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
    counts = ("overloaded", "refused", "unknown", "no answer", "late ms")
    table = figure_table(("open loop",), (*headings, *counts))
    for result in results:
        times = (result.p50_ms, result.p90_ms, result.p99_ms, result.p999_ms, result.max_ms)
        table.add_row(
            result.load,
            f"{result.share_of_peak:.0%}",
            f"{result.offered_per_second:,.0f}",
            f"{result.accepted_per_second:,.0f}",
            *(number(value, 2) for value in times),
            *(f"{n:,}" for n in (result.overloaded, result.refused, result.unknown, result.unanswered)),
            f"{result.sender_late_p99_ms:,.2f}",
        )
    table.caption = (
        "Poisson arrivals; times from when a request was due to its answer. Counted in requests:"
        " overloaded, refused, unknown, no answer. late ms: p99 of how late requests left; where it is"
        " not small, the load generator is the limit."
    )
    return table
