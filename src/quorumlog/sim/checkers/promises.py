"""The promises of a log to those who write to it and read from it."""

from __future__ import annotations

from quorumlog.sim.checkers.checker import Checker
from quorumlog.sim.checkers.committed_entries import CommittedEntries
from quorumlog.sim.checkers.committed_log import CommittedLog
from quorumlog.sim.checkers.convergence import Convergence
from quorumlog.sim.checkers.durable_entries import DurableEntries
from quorumlog.sim.checkers.log_matching import LogMatching
from quorumlog.sim.checkers.one_leader import OneLeader
from quorumlog.sim.checkers.same_machines import SameMachines
from quorumlog.sim.checkers.view import CheckedCluster


def promises(cluster: CheckedCluster) -> list[Checker]:
    """In the order in which they look: some rely on what those before them have noted."""
    log = CommittedLog(cluster)
    return [
        OneLeader(cluster),
        LogMatching(cluster),
        SameMachines(cluster),
        DurableEntries(cluster, log),
        CommittedEntries(cluster, log),
        Convergence(cluster),
    ]
