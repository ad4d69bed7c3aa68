"""One run: faults and clients for a while, then none, then everything must be well and stay so."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from quorumlog.node import LedgerNode
from quorumlog.sim.checkers.convergence import leader_of_one_log
from quorumlog.sim.cluster import SimCluster
from quorumlog.sim.faults.other_mode import OtherMode
from quorumlog.sim.faults.segment_drops import SegmentDrops
from quorumlog.sim.losses import IndexRange, Losses, lost_entries
from quorumlog.sim.machines import DIGEST_NAME, DigestMachine
from quorumlog.sim.profile import at_the_edges, draw_profile
from quorumlog.sim.trace import Trace
from quorumlog.sim.work.step_over_work import StepOverWork

FAULTS_MS = 15_000.0
WHOLE_LIMIT_MS = 30_000.0
"""How long after the last fault the cluster may take to become whole, in virtual time."""
QUIET_MS = 2_000.0
_LOOK_MS = 250.0


class NotWhole(AssertionError):
    """The faults have ended, and the cluster is not whole in the time that it may take."""


@dataclass(slots=True)
class RunResult:
    seed: int
    virtual_ms: float = 0.0
    trace_hash: int = 0
    events: int = 0
    appends: int = 0
    acknowledged: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    """Empty, or what was violated, with the place."""
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
    cluster = SimCluster(random, profile, trace, machines)
    other_mode = OtherMode(cluster, Random(f"{seed}:other mode"))
    drops = SegmentDrops(cluster, Random(f"{seed}:drops"))
    result = RunResult(seed, counts=trace.counts)
    try:
        if lossy_disks:
            _run_on_lossy_disks(cluster, faults_ms, other_mode, result)
        else:
            drops.begin()
            StepOverWork(cluster, Random(f"{seed}:step overs")).begin()
            _run(cluster, faults_ms, other_mode)
    except Exception:  # whatever it is, this run has failed, and the others go on
        result.failure = traceback.format_exc()
    result.virtual_ms = cluster.now_ms
    result.trace_hash, result.events = trace.hash, trace.events
    result.appends = len(cluster.operations.appends)
    result.acknowledged = _acknowledged(cluster)
    return result


def _run(cluster: SimCluster, faults_ms: float, other_mode: OtherMode) -> None:
    for member in cluster.members:
        cluster.at(cluster.random.uniform(0, 300), member.start)
    for client in cluster.clients:
        client.work()
    for producer in cluster.producers:
        producer.work()
    for reader in cluster.readers:
        reader.work()
    if cluster.profile.reads_freshly:
        cluster.fresh_reads.begin()
    cluster.faults.begin()
    if cluster.profile.changes_members:
        cluster.member_work.begin()
    other_mode.begin()
    cluster.faults.damage.begin_sectors()
    cluster.run_for(faults_ms)
    other_mode.stop()
    make_whole(cluster)


def _run_on_lossy_disks(
    cluster: SimCluster, faults_ms: float, other_mode: OtherMode, result: RunResult
) -> None:
    losses = Losses(cluster)
    cluster.checkers.append(losses)
    try:
        _run(cluster, faults_ms, other_mode)
    except NotWhole as reason:
        result.not_whole = str(reason)
    result.lost = lost_entries(cluster)
    result.diverged = sorted(losses.diverged)


def make_whole(cluster: SimCluster) -> None:
    """No more faults: the cluster is whole within a bounded time. Raises NotWhole, and Violation."""
    cluster.trace.note(cluster.now_ms, "fault", "none any more")
    cluster.is_faulty = False
    cluster.faults.stop()
    whole_by_ms = cluster.now_ms + WHOLE_LIMIT_MS
    if cluster.clients:
        before = _acknowledged(cluster)
        _wait(cluster, whole_by_ms, lambda: _acknowledged(cluster) > before, "an acknowledged append")
    cluster.clients_work = False
    settled = "an answer to all that producers have sent"
    _wait(cluster, whole_by_ms, lambda: all(p.is_settled for p in cluster.producers), settled)
    _wait(cluster, whole_by_ms, lambda: _is_whole(cluster), "one leader and one log")
    if any(member.is_damaged for member in cluster.members):
        # What nobody has read yet is found by the scrub, and repaired soon after.
        scrubbed_by_ms = cluster.now_ms + WHOLE_LIMIT_MS
        _begin_scrub(cluster)
        _wait(cluster, scrubbed_by_ms, lambda: _is_repaired(cluster), "end of the repair")
        _wait(cluster, scrubbed_by_ms, lambda: _is_whole(cluster), "one leader and one log, repaired")
    cluster.run_for(QUIET_MS)
    # A leader that writes an entry of its own now and then may be doing so just now.
    _wait(cluster, cluster.now_ms + WHOLE_LIMIT_MS, lambda: _is_whole(cluster), "one log, still")
    cluster.told("made_whole")


def _begin_scrub(cluster: SimCluster) -> None:
    """Now, and not once its delay is over: switched off and on, as an operator may do it."""
    for member in cluster.members:
        storage = member.config.storage
        for bytes_per_second in (0, storage.scrub_bytes_per_second):
            changed = replace(storage, scrub_bytes_per_second=bytes_per_second)
            member.enter_node("configure", replace(member.config, storage=changed))


def _is_repaired(cluster: SimCluster) -> bool:
    nodes = [member.node for member in cluster.members if member.is_up]
    return all(node.scrub_status().passes and not node.store.damaged for node in nodes)


def _acknowledged(cluster: SimCluster) -> int:
    return sum(append.is_committed for append in cluster.operations.appends)


def _wait(cluster: SimCluster, until_ms: float, done: Callable[[], bool], what: str) -> None:
    while not done():
        if cluster.now_ms >= until_ms:
            members = (
                f"{m.member_id} {m.node.status() if m.is_up else 'is down'}" for m in cluster.members
            )
            raise NotWhole(f"no {what} {WHOLE_LIMIT_MS:g} ms after the last fault: {'; '.join(members)}")
        cluster.run_for(_LOOK_MS)


def _is_whole(cluster: SimCluster) -> bool:
    if not all(member.is_up for member in cluster.members):
        return False
    nodes = [member.node for member in cluster.members]
    return leader_of_one_log(nodes) is not None and all(_has_applied(node) for node in nodes)


def _has_applied(node: LedgerNode) -> bool:
    """All that is committed."""
    return all(
        row.problem or row.applied_index == node.committed_index for row in node.machines.status()
    )
