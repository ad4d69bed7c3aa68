"""What connections that never say a word cost: memory of the leader, and the throughput of others."""

from __future__ import annotations

import resource
import socket
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from benchmarks.links import servers_leader_first
from benchmarks.outcome import Outcome, Report
from harness.member_processes import MemberProcesses
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import usage_of
from quorumlog.bench.workloads import AppendLoad, measure
from quorumlog.config import parse_address

CONNECTIONS = 4000
WRITERS = AppendLoad("silent-256-clients", 256, 1, 1, 1024)
REPETITIONS = 5
MOST_SECONDS = 3.0
"""Of one load: silent connections are closed after five."""
TARGETS = (PromisedFigure("share", 0.9, True), PromisedFigure("memory_mb", 100.0, False))


def measure_silent(
    folder: Path,
    seconds: float,
    report: Report,
    *,
    connections: int = CONNECTIONS,
    repetitions: int = REPETITIONS,
    load: AppendLoad = WRITERS,
) -> Outcome:
    """In turn with and without them, since what else the machine does changes from turn to turn."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * connections)), hard))
    shares: list[float] = []
    memory_mb: list[float] = []
    with MemberProcesses(folder) as members:
        servers = uvloop.run(servers_leader_first(members)).split(",")
        leader = next(each for each in members.members if each.address == servers[0])
        uvloop.run(measure(load, members.running_group, seconds))  # the first pays for a warm-up
        for number in range(repetitions):
            report(f"silent connections: {number + 1} of {repetitions}")
            alone = uvloop.run(measure(load, members.running_group, min(seconds, MOST_SECONDS)))
            before = usage_of(leader.pid).anonymous_bytes
            with _silent(leader.address, connections):
                beside = uvloop.run(measure(load, members.running_group, min(seconds, MOST_SECONDS)))
                memory_mb.append((usage_of(leader.pid).anonymous_bytes - before) / 1e6)
            shares.append(beside.records_per_second / alone.records_per_second)
    figures = {
        "share": statistics.median(shares),
        "least_share": min(shares),
        "memory_mb": max(memory_mb),
        "connections": float(connections),
    }
    return Outcome("silent", figures, TARGETS, "memory of the leader, above what it had before")


@contextmanager
def _silent(address: str, count: int) -> Iterator[None]:
    where = parse_address(address)
    with ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(where))
        yield
