"""What a session costs: the same load by producers and by clients that are none, in turn.

Both are real clients, and both have no more batches under way than a session allows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.links import servers_leader_first
from benchmarks.outcome import Outcome, Report
from harness.member_processes import MemberProcesses
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import RunningGroup
from quorumlog.bench.workloads import AppendLoad, Measured, measure
from quorumlog.log_state.producers import MOST_BATCHES

REPETITIONS = 5
MOST_SECONDS = 2.0
"""Of one of the thirty loads: a share is the median of five turns, each as short as it may be."""


class Compared(NamedTuple):
    """A load, and the share of its throughput without sessions that must remain."""

    load: AppendLoad
    share: float


COMPARED = (
    Compared(AppendLoad("session-batches", 1, MOST_BATCHES, 256, 1024), 0.9),
    Compared(AppendLoad("session-joined", 1, 256, 1, 1024), 0.85),
    Compared(AppendLoad("session-256-clients", 256, 1, 1, 1024), 0.6),
)


def measure_sessions(
    folder: Path,
    seconds: float,
    report: Report,
    *,
    repetitions: int = REPETITIONS,
    loads: Sequence[Compared] = COMPARED,
) -> Iterator[Outcome]:
    seconds = min(seconds, MOST_SECONDS)
    with MemberProcesses(folder) as members:
        report("waiting for a leader")
        uvloop.run(servers_leader_first(members))
        for compared in loads:
            found: dict[bool, list[Measured]] = {False: [], True: []}
            for number in range(repetitions):
                # Who comes first changes, so that what the one leaves behind meets both.
                for in_session in (False, True) if number % 2 == 0 else (True, False):
                    how = "with" if in_session else "without"
                    report(f"{compared.load.name}: {how}, {number + 1} of {repetitions}")
                    load = replace(compared.load, in_session=in_session)
                    found[in_session].append(_measure(members.running_group, load, seconds))
            yield _outcome(compared, found[False], found[True])


def _measure(group: RunningGroup, load: AppendLoad, seconds: float) -> Measured:
    return uvloop.run(measure(load, group, seconds))


def _outcome(compared: Compared, without: list[Measured], with_sessions: list[Measured]) -> Outcome:
    """Shares of each turn's two, since what else the machine does changes from turn to turn."""
    shares = [
        own.records_per_second / plain.records_per_second
        for plain, own in zip(without, with_sessions, strict=True)
    ]
    figures = {
        "without_per_second": statistics.median(each.records_per_second for each in without),
        "with_per_second": statistics.median(each.records_per_second for each in with_sessions),
        "share": statistics.median(shares),
        "least_share": min(shares),
        "most_share": max(shares),
        "without_cpu_seconds_per_million": statistics.median(e.cpu_seconds_per_million for e in without),
        "with_cpu_seconds_per_million": statistics.median(
            e.cpu_seconds_per_million for e in with_sessions
        ),
    }
    return Outcome(compared.load.name, figures, (PromisedFigure("share", compared.share, True),))
