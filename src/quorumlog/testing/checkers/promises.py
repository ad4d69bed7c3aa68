"""The promises of a log to those who write to it and read from it."""

from __future__ import annotations

from quorumlog.testing.checkers.checker import Checker
from quorumlog.testing.checkers.committed_entries import CommittedEntries
from quorumlog.testing.checkers.committed_log import CommittedLog
from quorumlog.testing.checkers.convergence import Convergence
from quorumlog.testing.checkers.durable_entries import DurableEntries
from quorumlog.testing.checkers.log_matching import LogMatching
from quorumlog.testing.checkers.one_leader import OneLeader
from quorumlog.testing.checkers.same_machines import SameMachines
from quorumlog.testing.checkers.view import CheckedCluster


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
