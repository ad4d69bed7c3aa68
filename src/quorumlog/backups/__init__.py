"""A log that lies elsewhere, too: backups of a cluster, and new clusters made from them.

Read in this order: `taking` (a backup, of any member while it works), `folding` (the state of the log at
its end), `restoring` (a new cluster).
"""

from __future__ import annotations

from quorumlog.backups.restoring import Restored, restore
from quorumlog.backups.taking import BackupTaken, backup

__all__ = ["BackupTaken", "Restored", "backup", "restore"]
