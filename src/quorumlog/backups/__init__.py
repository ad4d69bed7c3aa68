"""A log that lies elsewhere, too: backups of a cluster, and new clusters made from them; and what is
made of the directories that are left of one.

Read in this order: `taking` (a backup, of any member while it works), `folding` (the state of the log at
its end), `restoring` (a new cluster). Then `survivors` (what is left once a majority is lost),
`recovering` (a new cluster of it).
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
