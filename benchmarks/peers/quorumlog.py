"""quorumlog itself, by the loads of `quorumlog bench`, once for each kind of acknowledgement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import uvloop

from benchmarks.peers.cache import Cache
from benchmarks.peers.system import SINGLES, Figures, MeasuringFailed, Shape, System
from demo.member_processes import MemberFailed, MemberProcesses
from quorumlog import connect_async
from quorumlog.cli.workloads import LOADS, AppendLoad, measure
from quorumlog.config import DEFAULT_GROUP
from quorumlog.errors import LedgerError
from quorumlog.version import VERSION

_LOADS = {load.name: load for load in LOADS if isinstance(load, AppendLoad)}
_BULK = _LOADS["batches"]


class Quorumlog(System):
    family = "quorumlog"
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(
            _BULK.connections,
            _BULK.in_flight,
            _BULK.batch_records,
            f"append_batch of {_BULK.batch_records}, {_BULK.in_flight} in flight",
        ),
    }

    def __init__(self, flush: Literal["sync", "async"]) -> None:
        self.name = f"quorumlog-{flush}"
        self.synced = flush == "sync"
        self.durability = "log synced on 2 of 3" if self.synced else "page cache of 2 of 3"
        self._flush = flush

    @property
    def title(self) -> str:
        return f"quorumlog {VERSION} {self._flush}"

    def set_up(self, cache: Cache) -> None:
        """This very source tree is what runs."""

    @contextmanager
    def running(self, folder: Path) -> Iterator[RunningMembers]:
        try:
            with MemberProcesses(folder / "members", flush=self._flush) as members:
                uvloop.run(_first_append(members.servers))
                yield RunningMembers(members.servers, [member.pid for member in members.members])
                members.check_running()
        except (MemberFailed, LedgerError) as error:
            raise MeasuringFailed(str(error)) from error


class RunningMembers:
    def __init__(self, servers: str, pids: Sequence[int]) -> None:
        self._servers = servers
        self._pids = pids

    def measure(self, workload: str, seconds: float) -> Figures:
        load = _LOADS["batches" if workload == "bulk" else workload]
        try:
            measured = uvloop.run(measure(load, self._servers, DEFAULT_GROUP, seconds, self._pids))
        except LedgerError as error:
            raise MeasuringFailed(str(error)) from error
        return Figures(
            records_per_second=measured.records_per_second,
            operations_per_second=measured.records_per_second / load.batch_records,
            p50_ms=measured.p50_ms,
            p99_ms=measured.p99_ms,
            # Seconds for a million are microseconds for one.
            cpu_us_per_record=measured.cpu_seconds_per_million,
        )


async def _first_append(servers: str) -> None:
    async with connect_async(servers) as client:
        await client.append(b"ready")
