"""Time without a leader: from the fault to the next acknowledged append, many times over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import uvloop

from demo.faults import Failover, Watch, kill_leader, stop_leader
from demo.member_processes import MemberProcesses
from demo.producer import Producer
from quorumlog import connect_async
from quorumlog.cli.bench import target_line
from quorumlog.cli.workloads import Target

BODY = bytes(1024)
IN_FLIGHT = 256
"""Single appends of one client, which is about what three members on two cores can take."""
STOP_SECONDS = 2.0
"""Long enough for an election, so that the old leader comes back into a later term."""
QUIET_SECONDS = 0.3
"""Up to so long the cluster works undisturbed between two faults, so that faults meet heartbeats and
elections' leftovers at every phase."""


class FailoverTimes(NamedTuple):
    signal_name: str
    targets: tuple[Target, ...]
    """Of the figures of `figures`."""
    seconds: tuple[float, ...]
    unknown_outcomes: int

    @property
    def figures(self) -> dict[str, float]:
        median_s, p90_s, p99_s = (float(q) for q in np.percentile(self.seconds, (50, 90, 99)))
        return {"median_s": median_s, "p90_s": p90_s, "p99_s": p99_s, "worst_s": max(self.seconds)}

    def row(self) -> dict[str, Any]:
        figures = self.figures
        return {
            "workload": f"failover-{self.signal_name.lower()}",
            "runs": len(self.seconds),
            **figures,
            "seconds": [round(seconds, 4) for seconds in self.seconds],
            "unknown_outcomes": self.unknown_outcomes,
            "targets": [target.row(figures[target.figure]) for target in self.targets],
        }

    def lines(self) -> list[str]:
        name = f"{self.signal_name} of the leader, {len(self.seconds)} runs"
        return [target_line(name, target, self.figures[target.figure]) for target in self.targets]


KILL_TARGETS = (Target("median_s", 0.2, False), Target("p99_s", 0.6, False))
STOP_TARGETS = (Target("median_s", 1.2, False), Target("worst_s", 2.5, False))


def time_failovers(
    members: MemberProcesses, kills: int, stops: int, report: Callable[[str], None]
) -> list[FailoverTimes]:
    """Kill the leader `kills` times and stop it `stops` times, while 256 tasks append 1 KiB records."""
    return uvloop.run(_time_failovers(members, kills, stops, report))


async def _time_failovers(
    members: MemberProcesses, kills: int, stops: int, report: Callable[[str], None]
) -> list[FailoverTimes]:
    async with connect_async(members.servers) as client, connect_async(members.servers) as watching:
        watch = Watch(watching, members)
        producer = Producer(client, repeat([BODY]), in_flight=IN_FLIGHT)
        writing = asyncio.create_task(producer.run())

        async def kill() -> Failover:
            return await kill_leader(members, watch, producer)

        async def stop() -> Failover:
            return await stop_leader(members, watch, producer, seconds=STOP_SECONDS)

        results = []
        for signal_name, runs, targets, fault in (
            ("SIGKILL", kills, KILL_TARGETS, kill),
            ("SIGSTOP", stops, STOP_TARGETS, stop),
        ):
            found: Sequence[Failover] = []
            unknown_before = producer.unknown_batches
            for number in range(runs):
                report(f"{signal_name} of the leader, {number + 1} of {runs}")
                await asyncio.sleep(random.uniform(0, QUIET_SECONDS))
                # Tens of thousands a second; whoever waits for a later term looks through all of them.
                producer.acks.clear()
                found = [*found, await fault()]
                if writing.done():
                    await writing  # raises what ended it
            if found:
                seconds = tuple(failover.seconds_without_leader for failover in found)
                unknown = producer.unknown_batches - unknown_before
                results.append(FailoverTimes(signal_name, targets, seconds, unknown))
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        return results
