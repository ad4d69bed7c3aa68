"""What a slow link costs: one follower 20 ms away, then every link with 2 ms, beside the same without.

All of it through the proxy, also what is without delay: the proxy costs all of them the same. The
settings take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.links import PROXY_NOTE, DelayedMembers, servers_leader_first
from benchmarks.outcome import Outcome, Report
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.workloads import LOADS_BY_NAME, Measured, measure

REPETITIONS = 3


class Slow(NamedTuple):
    """A setting, and the share of the throughput without it that must remain."""

    name: str
    delay_ms: float
    is_one_follower: bool
    loads: tuple[str, ...]
    share: float


SLOW = (
    # What is left is what repetitions differ by.
    Slow("slow-follower", 20.0, True, ("256-writers", "batches"), 0.95),
    Slow("slow-links", 2.0, False, ("256-writers",), 0.5),
)


def measure_delays(
    folder: Path, seconds: float, report: Report, *, repetitions: int = REPETITIONS
) -> Iterator[Outcome]:
    with DelayedMembers(folder) as members:
        for slow in SLOW:
            for name in slow.loads:
                without: list[Measured] = []
                with_delay: list[Measured] = []
                for number in range(repetitions):
                    for delay_ms, found in ((0.0, without), (slow.delay_ms, with_delay)):
                        report(f"{slow.name}, {name}: {delay_ms:g} ms, {number + 1} of {repetitions}")
                        servers = uvloop.run(servers_leader_first(members))
                        follower = _last_of(members, servers) if slow.is_one_follower else None
                        members.set_delay(delay_ms, of=follower)
                        found.append(_measure(members, servers, name, seconds))
                yield _outcome(slow, name, without, with_delay)


def _last_of(members: DelayedMembers, servers: str) -> str:
    address = servers.rpartition(",")[2]
    return next(m.member_id for m in members.members if m.address == address)


def _measure(members: DelayedMembers, servers: str, name: str, seconds: float) -> Measured:
    group = members.running_group._replace(servers=servers)
    return uvloop.run(measure(LOADS_BY_NAME[name], group, seconds))


def _outcome(slow: Slow, load: str, without: list[Measured], with_delay: list[Measured]) -> Outcome:
    plain, slowed = (
        statistics.median(measured.records_per_second for measured in found)
        for found in (without, with_delay)
    )
    figures = {
        "delay_ms": slow.delay_ms,
        "without_per_second": plain,
        "with_per_second": slowed,
        "share": slowed / plain,
        "without_p99_ms": statistics.median(measured.p99_ms for measured in without),
        "with_p99_ms": statistics.median(measured.p99_ms for measured in with_delay),
    }
    targets = (PromisedFigure("share", slow.share, True),)
    return Outcome(f"{slow.name}-{load}", figures, targets, f"delay each way; {PROXY_NOTE}")
