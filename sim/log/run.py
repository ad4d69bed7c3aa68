"""One run: faults and clients for a while, then none, then everything must be well and stay so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quorumlog.testing.cluster import NotWhole, acknowledged
from quorumlog.testing.machines import DIGEST_NAME, DigestMachine
from quorumlog.testing.operations import Trace
from sim.log.faults.other_mode import OtherMode
from sim.log.faults.segment_drops import SegmentDrops
from sim.log.losses import IndexRange, Losses, lost_entries
from sim.log.profile import at_the_edges, draw_profile
from sim.log.work.step_over_work import StepOverWork
from sim.log.world import LogWorld
from sim.ran import Ran

FAULTS_MS = 15_000.0


@dataclass(slots=True)
class RunResult(Ran):
    virtual_ms: float = 0.0
    events: int = 0
    appends: int = 0
    acknowledged: int = 0
    lost: list[IndexRange] = field(default_factory=list)
    """On lossy disks: acknowledged entries that are gone at the end."""
    diverged: list[str] = field(default_factory=list)
    """On lossy disks: members that found others holding other entries."""
    not_whole: str = ""
    """On lossy disks: what the cluster waited for in vain at the end; empty if it is whole."""


def run_seed(
    seed: int,
    *,
    faults_ms: float = FAULTS_MS,
    size: int | None = None,
    lossy_disks: bool = False,
    member_changes: bool = False,
    tell: Callable[[str], None] | None = None,
) -> RunResult:
    """Same seed and arguments, same run. Raises nothing: what goes wrong is in the result.

    `member_changes`: members come and go in every run of two or more, not in one of six.

    `lossy_disks`: disks forget what they have synced, on any number of members. The result says which
    entries are lost and whether the cluster is whole; nothing wrong may be served even so.
    """
    random = Random(seed)
    trace = Trace(tell)
    drawn = draw_profile(random, size, lossy_disks=lossy_disks, member_changes=member_changes)
    profile, edges = at_the_edges(drawn, Random(f"{seed}:options"))
    for edge in edges:
        trace.count(f"option at its edge: {edge}")
    machines = {DIGEST_NAME: DigestMachine} if profile.runs_machines else None
    world = LogWorld(random, profile, trace, machines)
    cluster = world.cluster
    other_mode = OtherMode(cluster, Random(f"{seed}:other mode"))
    drops = SegmentDrops(cluster, Random(f"{seed}:drops"))
    result = RunResult(seed, counts=trace.counts)
    with result.noting_failure():
        if lossy_disks:
            _run_on_lossy_disks(world, faults_ms, other_mode, result)
        else:
            drops.begin()
            StepOverWork(cluster, Random(f"{seed}:step overs")).begin()
            _run(world, faults_ms, other_mode)
    result.virtual_ms = cluster.now_ms
    result.trace_hash, result.events = trace.hash, trace.events
    result.appends = len(cluster.operations.appends)
    result.acknowledged = acknowledged(cluster)
    return result


def _run(world: LogWorld, faults_ms: float, other_mode: OtherMode) -> None:
    cluster = world.cluster
    for member in cluster.members:
        cluster.at(cluster.random.uniform(0, 300), member.start)
    world.begin_work()
    cluster.faults.begin()
    if cluster.profile.changes_members:
        world.member_work.begin()
    other_mode.begin()
    world.sectors.begin()
    cluster.run_for(faults_ms)
    other_mode.stop()
    world.make_whole()


def _run_on_lossy_disks(
    world: LogWorld, faults_ms: float, other_mode: OtherMode, result: RunResult
) -> None:
    cluster = world.cluster
    losses = Losses(cluster)
    cluster.checkers.append(losses)
    try:
        _run(world, faults_ms, other_mode)
    except NotWhole as reason:
        result.not_whole = str(reason)
    result.lost = lost_entries(cluster)
    result.diverged = sorted(losses.diverged)
