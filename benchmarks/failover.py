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

BODY = bytes(1024)
STOP_SECONDS = 2.0
"""Long enough for an election, so that the old leader comes back into a later term."""
QUIET_SECONDS = 0.3
"""Up to so long the cluster works undisturbed between two faults, so that faults meet heartbeats and
elections' leftovers at every phase."""


class FailoverTimes(NamedTuple):
    signal_name: str
    target_s: float
    """For the median."""
    seconds: tuple[float, ...]
    unknown_outcomes: int

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    def row(self) -> dict[str, Any]:
        return {
            "workload": f"failover-{self.signal_name.lower()}",
            "runs": len(self.seconds),
            "median_s": self.median_s,
            "p90_s": float(np.percentile(self.seconds, 90)),
            "worst_s": max(self.seconds),
            "seconds": [round(seconds, 4) for seconds in self.seconds],
            "unknown_outcomes": self.unknown_outcomes,
            "targets": [
                {"figure": "median_s", "bound": self.target_s, "at_least": False, "met": self.is_met}
            ],
        }

    @property
    def is_met(self) -> bool:
        return self.median_s <= self.target_s


def time_failovers(
    members: MemberProcesses, kills: int, stops: int, report: Callable[[str], None]
) -> list[FailoverTimes]:
    """Kill the leader `kills` times and stop it `stops` times, while a writer appends 1 KiB records."""
    return uvloop.run(_time_failovers(members, kills, stops, report))


async def _time_failovers(
    members: MemberProcesses, kills: int, stops: int, report: Callable[[str], None]
) -> list[FailoverTimes]:
    async with connect_async(members.servers) as client, connect_async(members.servers) as watching:
        watch = Watch(watching, members)
        producer = Producer(client, repeat([BODY]), in_flight=1)
        writing = asyncio.create_task(producer.run())

        async def kill() -> Failover:
            return await kill_leader(members, watch, producer)

        async def stop() -> Failover:
            return await stop_leader(members, watch, producer, seconds=STOP_SECONDS)

        results = []
        for signal_name, runs, target_s, fault in (
            ("SIGKILL", kills, 0.6, kill),
            ("SIGSTOP", stops, 1.5, stop),
        ):
            found: Sequence[Failover] = []
            unknown_before = producer.unknown_batches
            for number in range(runs):
                report(f"{signal_name} of the leader, {number + 1} of {runs}")
                await asyncio.sleep(random.uniform(0, QUIET_SECONDS))
                found = [*found, await fault()]
                if writing.done():
                    await writing  # raises what ended it
            if found:
                seconds = tuple(failover.seconds_without_leader for failover in found)
                unknown = producer.unknown_batches - unknown_before
                results.append(FailoverTimes(signal_name, target_s, seconds, unknown))
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        return results
