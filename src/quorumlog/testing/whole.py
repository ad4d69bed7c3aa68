"""How a cluster becomes whole once nothing strikes it any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quorumlog.node import LedgerNode
from quorumlog.testing.checkers.convergence import leader_of_one_log
from quorumlog.testing.cluster import SimCluster

WHOLE_LIMIT_MS = 30_000.0
"""How long after the last fault the cluster may take to become whole, in virtual time."""
QUIET_MS = 2_000.0
_LOOK_MS = 250.0


class NotWhole(AssertionError):
    """The faults have ended, and the cluster is not whole in the time that it may take."""


def make_whole(cluster: SimCluster, is_settled: Callable[[], bool] = lambda: True) -> None:
    """No more faults: the cluster is whole within a bounded time. Raises NotWhole, and Violation.

    `is_settled`: whoever still sends once clients work no more has its answers.
    """
    cluster.trace.note(cluster.now_ms, "fault", "none any more")
    cluster.is_faulty = False
    cluster.faults.stop()
    whole_by_ms = cluster.now_ms + WHOLE_LIMIT_MS
    if cluster.clients:
        before = acknowledged(cluster)
        _wait(cluster, whole_by_ms, lambda: acknowledged(cluster) > before, "an acknowledged append")
    cluster.clients_work = False
    _wait(cluster, whole_by_ms, is_settled, "an answer to all that producers have sent")
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


def acknowledged(cluster: SimCluster) -> int:
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
