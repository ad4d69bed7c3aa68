"""Time without a leader: from the fault to the next acknowledged append, many times over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import uvloop

from harness.faults import Failover, Watch, kill_leader, stop_leader, terminate_leader
from harness.member_processes import MemberProcesses
from harness.producer import Producer
from quorumlog import connect_async
from quorumlog.bench.figures import PromisedFigure, target_rows

BODY = bytes(1024)
IN_FLIGHT = 256
"""Single appends of one client, which is about what three members on two cores can take."""
BATCH_RECORDS = 256
BATCHES_IN_FLIGHT = 16
"""4 MiB that wait for their commit whenever a leader is asked to hand over."""
IN_STEP_ENTRIES = 8 * BATCH_RECORDS * BATCHES_IN_FLIGHT
"""A stop waits until the member before is back: the next leader would wait for it otherwise. Under full
load the slower follower is always behind by a window of pushes and more."""
STOP_SECONDS = 2.0
"""Long enough for an election, so that the old leader comes back into a later term."""
QUIET_SECONDS = 0.3
"""At most, between two faults: so faults meet heartbeats and elections' leftovers at every phase."""


class FailoverTimes(NamedTuple):
    signal_name: str
    targets: tuple[PromisedFigure, ...]
    """Of the figures of `figures`."""
    seconds: tuple[float, ...]
    unknown_outcomes: int

    @property
    def figures(self) -> dict[str, float]:
        median_s, p90_s, p99_s = (float(q) for q in np.percentile(self.seconds, (50, 90, 99)))
        return {"median_s": median_s, "p90_s": p90_s, "p99_s": p99_s, "worst_s": max(self.seconds)}

    def row(self) -> dict[str, Any]:
        return {
            "workload": f"failover-{self.signal_name.lower()}",
            "runs": len(self.seconds),
            **self.figures,
            "seconds": [round(seconds, 4) for seconds in self.seconds],
            "unknown_outcomes": self.unknown_outcomes,
            "targets": target_rows(self),
        }

    @property
    def name(self) -> str:
        return f"{self.signal_name} of the leader, {len(self.seconds)} runs"

    def figure(self, name: str) -> float:
        return self.figures[name]


KILL_TARGETS = (PromisedFigure("median_s", 0.2, False), PromisedFigure("p99_s", 0.6, False))
HAND_OVER_TARGETS = (PromisedFigure("median_s", 0.1, False),)
STOP_TARGETS = (PromisedFigure("median_s", 1.2, False), PromisedFigure("worst_s", 2.5, False))


Fault = Callable[[MemberProcesses, Watch, Producer], Awaitable[Failover]]


async def _terminate(members: MemberProcesses, watch: Watch, producer: Producer) -> Failover:
    await watch.in_step(IN_STEP_ENTRIES)
    return await terminate_leader(members, watch, producer)


async def _stop(members: MemberProcesses, watch: Watch, producer: Producer) -> Failover:
    return await stop_leader(members, watch, producer, seconds=STOP_SECONDS)


def time_failovers(
    members: MemberProcesses, kills: int, stops: int, report: Callable[[str], None]
) -> list[FailoverTimes]:
    """Kill the leader `kills` times and stop it `stops` times, while 256 tasks append 1 KiB records."""
    faults = (
        ("SIGKILL", kills, KILL_TARGETS, kill_leader),
        ("SIGSTOP", stops, STOP_TARGETS, _stop),
    )
    return uvloop.run(_time(members, [BODY], IN_FLIGHT, faults, report))


def time_hand_overs(
    members: MemberProcesses, count: int, report: Callable[[str], None]
) -> list[FailoverTimes]:
    """Ask the leader to end `count` times, while 16 tasks append batches of 256 records of 1 KiB."""
    faults = (("SIGTERM", count, HAND_OVER_TARGETS, _terminate),)
    return uvloop.run(_time(members, [BODY] * BATCH_RECORDS, BATCHES_IN_FLIGHT, faults, report))


async def _time(
    members: MemberProcesses,
    batch: list[bytes],
    in_flight: int,
    faults: Sequence[tuple[str, int, tuple[PromisedFigure, ...], Fault]],
    report: Callable[[str], None],
) -> list[FailoverTimes]:
    async with connect_async(members.servers) as client, connect_async(members.servers) as watching:
        watch = Watch(watching, members)
        producer = Producer(client, repeat(batch), in_flight=in_flight)
        writing = asyncio.create_task(producer.run())
        results = []
        for signal_name, runs, targets, fault in faults:
            found: Sequence[Failover] = []
            unknown_before = producer.unknown_batches
            for number in range(runs):
                report(f"{signal_name} of the leader, {number + 1} of {runs}")
                await asyncio.sleep(random.uniform(0, QUIET_SECONDS))
                # Tens of thousands a second; whoever waits for a later term looks through all of them.
                producer.acks.clear()
                found = [*found, await fault(members, watch, producer)]
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
