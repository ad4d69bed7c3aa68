"""quorumlog itself: each kind of acknowledgement, as it is and compiled, and a load client in Python.

The load comes from a client in Go, as the others' does: a client in Python would take more of the two
processors than its due. Programs that use quorumlog are in Python, though, so the loads of
`quorumlog bench` stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import uvloop

from benchmarks.peers.cache import Cache
from benchmarks.peers.load_client import Command, prepare, run_load
from benchmarks.peers.system import SINGLES, Figures, MeasuringFailed, Running, Shape, System
from harness.member_processes import MemberFailed, MemberProcesses
from quorumlog import connect_async
from quorumlog.bench.running_group import RunningGroup, usage_of
from quorumlog.bench.workloads import APPEND_LOADS, measure
from quorumlog.errors import LedgerError
from quorumlog.version import VERSION

_BULK = APPEND_LOADS["batches"]


class Quorumlog(System):
    family = "quorumlog"
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(
            _BULK.connections,
            _BULK.in_flight,
            _BULK.batch_records,
            f"batches of {_BULK.batch_records}, {_BULK.in_flight} in flight",
        ),
    }

    def __init__(
        self,
        flush: Literal["sync", "async"],
        *,
        is_compiled: bool = False,
        python_client: bool = False,
    ) -> None:
        self.name = "quorumlog-python" if python_client else f"quorumlog-{flush}"
        if is_compiled:
            self.name += "-compiled"
        self.synced = flush == "sync"
        self.durability = "log synced on 2 of 3" if self.synced else "page cache of 2 of 3"
        self._flush = flush
        self._is_compiled = is_compiled
        self._python_client = python_client
        self._client: Command = ()
        self._package: Path | None = None
        """Where the compiled one lies."""

    @property
    def title(self) -> str:
        client = ", load client in Python" if self._python_client else ""
        compiled = ", compiled" if self._is_compiled else ""
        return f"quorumlog {VERSION} {self._flush}{compiled}{client}"

    def set_up(self, cache: Cache) -> None:
        """This very source tree is what runs."""
        if not self._python_client:
            self._client = [cache.go_build("quorumlog", ".", "quorumlog-load")]
        if self._is_compiled:
            self._package = cache.compiled_wheel()

    @contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        try:
            place = folder / "members"
            with MemberProcesses(place, flush=self._flush, package=self._package) as members:
                pids = [member.pid for member in members.members]
                if self._python_client:
                    uvloop.run(_first_append(members.servers))
                    yield _PythonLoads(members.running_group)
                else:
                    prepare(self._client, members.servers, {})
                    yield _GoLoads(self._client, members.servers, pids, folder)
                members.check_running()
        except (MemberFailed, LedgerError) as error:
            raise MeasuringFailed(str(error)) from error


class _GoLoads:
    def __init__(self, client: Command, servers: str, pids: Sequence[int], folder: Path) -> None:
        self._client = client
        self._servers = servers
        self._pids = pids
        self._folder = folder

    def measure(self, workload: str, seconds: float) -> Figures:
        shape, log = Quorumlog.shapes[workload], self._folder / f"load-{workload}.log"
        return run_load(self._client, self._servers, shape, seconds, self._cpu_seconds, log, {})

    def _cpu_seconds(self) -> float:
        return sum(usage_of(pid).cpu_seconds for pid in self._pids)


class _PythonLoads:
    def __init__(self, group: RunningGroup) -> None:
        self._group = group

    def measure(self, workload: str, seconds: float) -> Figures:
        load = APPEND_LOADS["batches" if workload == "bulk" else workload]
        try:
            measured = uvloop.run(measure(load, self._group, seconds))
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
