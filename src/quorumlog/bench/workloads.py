"""The loads of `quorumlog bench`: requests, durations and measurements.

One asyncio process plays all writers, each with a connection of its own. Only answers inside the
measured window, after the warm-up, count. Latencies are wall times around one call.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.raw_writer import RawWriter, leader_connections
from quorumlog.bench.running_group import RunningGroup, usage_of
from quorumlog.client import AsyncLedgerClient
from quorumlog.config import MIB
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ConfigError, OutcomeUnknown

WARM_UP_SECONDS = 0.5
FILL_BYTES_PER_SECOND = 64 * MIB
"""How much is appended to be read back, for each second that the reading shall last."""
FILL_LIMIT_BYTES = 512 * MIB
_FILL_BATCH_RECORDS = 512
_FILL_IN_FLIGHT = 8
_SAMPLE_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class AppendLoad:
    """`connections` writers, each with `in_flight` batches under way; batches of one record are single
    appends of tasks that share a client, which joins them."""

    name: str
    connections: int
    in_flight: int
    batch_records: int
    body_bytes: int
    targets: tuple[PromisedFigure, ...] = ()
    in_session: bool | None = None
    """Whether each writer is a producer; both are real clients then. None: none is, and lone writers of
    single records are bare connections."""

    @property
    def sync_records(self) -> int:
        """Records that lie after one sync where writers come together once: for the raw limit."""
        return self.connections * self.in_flight if self.batch_records == 1 else self.batch_records

    @property
    def sync_bytes(self) -> int:
        return self.sync_records * (HEADER_BYTES + self.body_bytes)


@dataclass(frozen=True, slots=True)
class ReadLoad:
    """One client reads entries appended just before, which are in the page cache."""

    name: str
    is_random: bool
    body_bytes: int = 1024
    targets: tuple[PromisedFigure, ...] = ()


Load = AppendLoad | ReadLoad


def _records_per_second(least: float) -> PromisedFigure:
    return PromisedFigure("records_per_second", least, True)


LOADS: tuple[Load, ...] = (
    AppendLoad(
        "one-writer", 1, 1, 1, 1024, (_records_per_second(900), PromisedFigure("p50_ms", 0.9, False))
    ),
    AppendLoad("64-writers", 64, 1, 1, 1024, (_records_per_second(15_000),)),
    AppendLoad("256-writers", 256, 1, 1, 1024, (PromisedFigure("cpu_seconds_per_million", 30, False),)),
    AppendLoad("concurrent-appends", 1, 256, 1, 1024, (_records_per_second(45_000),)),
    AppendLoad(
        "batches",
        1,
        8,
        256,
        1024,
        (_records_per_second(80_000), PromisedFigure("share_of_raw", 0.9, True)),
    ),
    AppendLoad("small-records", 1, 8, 1024, 128, (_records_per_second(450_000),)),
    ReadLoad("sequential-read", False, targets=(PromisedFigure("mb_per_second", 1000, True),)),
    ReadLoad("random-get", True),
)
LOADS_BY_NAME = {load.name: load for load in LOADS}
APPEND_LOADS = {load.name: load for load in LOADS if isinstance(load, AppendLoad)}


L = TypeVar("L")


def chosen(names: Sequence[str] | None, loads: Mapping[str, L]) -> list[L]:
    """All of `loads`, or those named by `--workload`; raises ConfigError for a name that is none's."""
    for name in names or ():
        if name not in loads:
            raise ConfigError(f"--workload {name} is unknown; choose from {', '.join(loads)}")
    return [loads[name] for name in names or loads]


@dataclass(slots=True)
class Measured:
    """The measurement of one load. MB are 10^6 bytes of entries, headers included."""

    seconds: float = 0.0
    records: int = 0
    records_per_second: float = 0.0
    mb_per_second: float = 0.0
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    unknown_outcomes: int = 0
    cpu_seconds_per_million: float = math.nan
    """Of all members together; NaN where their processes are not on this machine."""
    anonymous_mb: float = math.nan
    """RssAnon of the largest member, at its highest."""


@dataclass(slots=True)
class _Window:
    """The measured stretch of time and what falls into it."""

    began_s: float = math.inf
    ends_s: float = math.inf
    last_s: float = 0.0
    """When the last answer that counts was there."""
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    records: int = 0
    unknown: int = 0

    def is_over(self) -> bool:
        """Not before something came back, however long everybody was kept from working in it."""
        return self.records + self.unknown > 0 and time.perf_counter() >= self.ends_s

    def count(self, before_s: float, records: int) -> None:
        now = time.perf_counter()
        if before_s >= self.began_s:
            self.latencies_s.append(now - before_s)
            self.records += records
            self.last_s = now


async def measure(load: Load, group: RunningGroup, seconds: float) -> Measured:
    """Raises the client's error once its own deadline has passed."""
    if isinstance(load, AppendLoad):
        return await _measure_appends(load, group, seconds)
    return await _measure_reads(load, group, seconds)


# ---------------------------------------------------------------- appends


async def _measure_appends(load: AppendLoad, group: RunningGroup, seconds: float) -> Measured:
    """Writers of single records are bare connections (`raw_writer`), those of batches real clients."""
    window = _Window()
    is_bare = load.batch_records == load.in_flight == 1 and load.in_session is None
    writers = _raw_writers if is_bare else _client_writers
    async with writers(load, group, window) as start:
        window.ends_s = time.perf_counter() + min(WARM_UP_SECONDS, seconds / 4) + seconds
        finished = asyncio.gather(*start())
        await asyncio.sleep(window.ends_s - seconds - time.perf_counter())
        async with members_watched(group.pids) as watched:
            window.began_s = time.perf_counter()
            await finished
    return _measured(window, load.body_bytes, watched)


@asynccontextmanager
async def _raw_writers(
    load: AppendLoad, group: RunningGroup, window: _Window
) -> AsyncIterator[Callable[[], list[Awaitable[None]]]]:
    body = bodies_of(1, load.body_bytes)[0]
    dialled = leader_connections(lambda: RawWriter(group.name, body), load.connections, group)
    async with dialled as writers:
        yield lambda: [
            writer.start(window.is_over, lambda sent_s: window.count(sent_s, 1)) for writer in writers
        ]


@asynccontextmanager
async def _client_writers(
    load: AppendLoad, group: RunningGroup, window: _Window
) -> AsyncIterator[Callable[[], list[Awaitable[None]]]]:
    bodies = bodies_of(load.batch_records, load.body_bytes)
    async with AsyncExitStack() as stack:
        in_session = bool(load.in_session)
        clients = [
            await stack.enter_async_context(group.connect(in_session=in_session))
            for _ in range(load.connections)
        ]
        await asyncio.gather(*(_find_leader(client, bodies[0]) for client in clients))
        yield lambda: [
            _write(client, bodies, window) for client in clients for _ in range(load.in_flight)
        ]


async def _find_leader(client: AsyncLedgerClient, body: bytes) -> None:
    # Whether it is there is all the same: what counts comes later.
    with suppress(OutcomeUnknown):
        await client.append(body)


async def _write(client: AsyncLedgerClient, bodies: list[bytes], window: _Window) -> None:
    while not window.is_over():
        before_s = time.perf_counter()
        try:
            # One body goes the way of a single append, which the client joins with others.
            await (client.append(bodies[0]) if len(bodies) == 1 else client.append_batch(bodies))
        except OutcomeUnknown:
            window.unknown += 1
        else:
            window.count(before_s, len(bodies))


# ---------------------------------------------------------------- reads


async def _measure_reads(load: ReadLoad, group: RunningGroup, seconds: float) -> Measured:
    window = _Window()
    async with group.connect() as client:
        fill_bytes = min(FILL_LIMIT_BYTES, int(seconds * FILL_BYTES_PER_SECOND))
        receipts = await _fill(client, load.body_bytes, fill_bytes)
        read = _get_at_random if load.is_random else _read_in_order
        await read(client, receipts, window, min(WARM_UP_SECONDS, seconds / 4))
        async with members_watched(group.pids) as watched:
            window.began_s = time.perf_counter()
            await read(client, receipts, window, seconds)
    return _measured(window, load.body_bytes, watched)


async def _fill(client: AsyncLedgerClient, body_bytes: int, fill_bytes: int) -> list[AppendReceipt]:
    """Append about `fill_bytes`, to be read just after."""
    bodies = bodies_of(_FILL_BATCH_RECORDS, body_bytes)
    batches = max(1, fill_bytes // (_FILL_BATCH_RECORDS * (HEADER_BYTES + body_bytes)))
    receipts: list[AppendReceipt] = []
    left = iter(range(batches))

    async def write() -> None:
        for _ in left:
            receipt = await client.append_batch(bodies)
            receipts.append(receipt)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_FILL_IN_FLIGHT):
            tasks.create_task(write())
    return sorted(receipts, key=lambda receipt: receipt.first_index)


async def _read_in_order(
    client: AsyncLedgerClient, receipts: list[AppendReceipt], window: _Window, seconds: float
) -> None:
    ends_s = time.perf_counter() + seconds
    first_index, stop_index = receipts[0].first_index, receipts[-1].last_index + 1
    while time.perf_counter() < ends_s:
        before_s = time.perf_counter()
        async for batch in client.read_batches(first_index, stop_index):
            window.count(before_s, batch.count)
            before_s = time.perf_counter()
            if before_s >= ends_s:
                break


async def _get_at_random(
    client: AsyncLedgerClient, receipts: list[AppendReceipt], window: _Window, seconds: float
) -> None:
    indices = np.concatenate([np.arange(r.first_index, r.last_index + 1) for r in receipts])
    choices = iter(np.random.default_rng().choice(indices, 1 << 20).tolist())
    ends_s = time.perf_counter() + seconds
    while (before_s := time.perf_counter()) < ends_s:
        await client.get(next(choices))
        window.count(before_s, 1)


# ---------------------------------------------------------------- what it cost


class _Watched:
    """CPU seconds between begin and end, and the highest RssAnon seen."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.cpu_seconds = math.nan
        self.anonymous_bytes = 0

    def sample(self) -> float:
        usages = [usage_of(pid) for pid in self._pids]
        self.anonymous_bytes = max([self.anonymous_bytes, *(u.anonymous_bytes for u in usages)])
        return sum(usage.cpu_seconds for usage in usages)


@asynccontextmanager
async def members_watched(pids: Sequence[int]) -> AsyncIterator[_Watched]:
    watched = _Watched(pids)
    began = watched.sample()

    async def keep_sampling() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_INTERVAL_S)
            watched.sample()

    sampling = asyncio.get_running_loop().create_task(keep_sampling())
    try:
        yield watched
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        watched.cpu_seconds = watched.sample() - began if pids else math.nan


def _measured(window: _Window, body_bytes: int, watched: _Watched) -> Measured:
    latencies_ms = np.frombuffer(window.latencies_s, np.float64) * 1000
    seconds = max(window.last_s - window.began_s, 1e-9)
    if not len(latencies_ms):
        return Measured(seconds=seconds, unknown_outcomes=window.unknown)
    per_second = window.records / seconds
    p50_ms, p99_ms = (float(q) for q in np.percentile(latencies_ms, (50, 99)))
    return Measured(
        seconds=seconds,
        records=window.records,
        records_per_second=per_second,
        mb_per_second=per_second * (HEADER_BYTES + body_bytes) / 1e6,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        unknown_outcomes=window.unknown,
        cpu_seconds_per_million=watched.cpu_seconds / window.records * 1e6,
        anonymous_mb=watched.anonymous_bytes / 1e6 if watched.anonymous_bytes else math.nan,
    )


def bodies_of(count: int, body_bytes: int) -> list[bytes]:
    """Random: nothing on the way could make them smaller."""
    return [np.random.default_rng(number).bytes(body_bytes) for number in range(count)]
