"""Backups of a cluster, new clusters made from them, and recovery from the remaining directories of one.

Read in this order: `taking` (a backup, of any member while it works), `folding` (the state of the log at
its end), `restoring` (a new cluster). Then `survivors` (directories left after the loss of a majority),
`recovering` (a new cluster of them).
"""

from __future__ import annotations

from quorumlog.backups.recovering import Recovered, plan_recovery, recover_cluster
from quorumlog.backups.restoring import Restored, restore
from quorumlog.backups.survivors import RecoveryPlan, Survivor
from quorumlog.backups.taking import BackupTaken, backup

__all__ = [
    "BackupTaken",
    "Recovered",
    "RecoveryPlan",
    "Restored",
    "Survivor",
    "backup",
    "plan_recovery",
    "recover_cluster",
    "restore",
]
