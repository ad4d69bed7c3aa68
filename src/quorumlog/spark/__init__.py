"""The log on Apache Spark: `spark.read.format("quorumlog")`, `spark.readStream` and a session for them.

Read in this order: `ledger_data_source` (what Spark calls), `option_values`, `options`, `offsets` (which
entries a query means), `partitions` (how they become tasks), `short_errors`, `range_check` (what every
task proves about its range), `reading` (one plan, one task), `batch_reader`, the room `streaming`
(micro-batches), the room `sources` (where entries come from), `rows` (entries as Arrow columns), the
room `sink` (the other way), the room `messages` (the view of a message store). `session` and `java` set
Spark up on a bare machine; the room `pipelines` has those over whole logs, and is imported when it is
asked for.
"""

from importlib import import_module
from typing import Any

from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.session import session

__all__ = ["LedgerDataSource", "session"]


def __getattr__(name: str) -> Any:
    """A worker that reads a partition needs none of them, and starts faster without."""
    if name == "pipelines":
        return import_module("quorumlog.spark.pipelines")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
