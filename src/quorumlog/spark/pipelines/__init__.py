"""The pipelines by the name that Spark's users look for, and what they read as DataFrames.

They run in the calling process: reading a log is bound by checking its digests, which two threads beside
the driver do as fast as tasks on the same cores. What they write, and an archive together with the log
behind it (`option("archive", DIR)`), Spark reads in parallel.
"""

from __future__ import annotations

from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.compacting import compact
from quorumlog.pipelines.places import Place
from quorumlog.pipelines.replaying import replay
from quorumlog.pipelines.statistics import statistics

__all__ = ["Place", "archive", "audit", "compact", "replay", "statistics"]
