"""The pipelines by the name that Spark's users look for, and what they read as DataFrames.

Each runs in threads of the calling process, or, with `engine=SparkEngine(spark)`, as tasks on Spark's
executors; what comes out is the same. There `replay_frames` is what `replay` is in one process. What
they write, and an archive together with the log behind it
(`option("archive", DIR)`), Spark reads in parallel.
"""

from __future__ import annotations

from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.compacting import compact
from quorumlog.pipelines.engine import Engine, LocalEngine
from quorumlog.pipelines.places import Place
from quorumlog.pipelines.replaying import replay
from quorumlog.pipelines.statistics import statistics
from quorumlog.spark.pipelines.frame_replay import replay_frames
from quorumlog.spark.pipelines.spark_engine import SparkEngine

__all__ = [
    "Engine",
    "LocalEngine",
    "Place",
    "SparkEngine",
    "archive",
    "audit",
    "compact",
    "replay",
    "replay_frames",
    "statistics",
]
