"""The log on Apache Spark: `spark.read.format("quorumlog")`, `spark.readStream` and a session for them.

Read in this order: `ledger_data_source` (the interface to Spark), `options` (ranges and columns of a
query), `partitions` (tasks, and the checks of each), `short_errors`, `reading` (one plan, one task),
`batch_reader`, `streaming` (micro-batches), the package `sources` (servers, directories, archives),
`row_bodies` and `writers` (writing), the packages `messages` (the view of a message store) and `kafka`
(that of topics of Kafka's clients). `session` configures Spark on a bare machine; `pipelines` processes
whole logs, and is imported on demand.
"""

from importlib import import_module
from typing import Any

from quorumlog.config import DEFAULT_GROUP
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.session import session

__all__ = ["LedgerDataSource", "newest_batch", "session"]


def newest_batch(
    servers: str,
    producer_id: str,
    *,
    group: str = DEFAULT_GROUP,
    timeout_ms: int = 30_000,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> int | None:
    """Number of the newest batch that a sink has committed under this `producerId`; None: there is
    none. A job of fixed ranges continues after it. Raises ConfigError, Unreachable, UnknownGroup."""
    from quorumlog.staging import SinkCommits, open_sink_logs

    with open_sink_logs(servers, group, timeout_ms, tls=tls, user=user) as logs:
        newest = SinkCommits(logs, producer_id).newest()
        return None if newest is None else newest.batch.batch_id


def __getattr__(name: str) -> Any:
    """A worker that reads a partition needs none of them, and starts faster without."""
    if name == "pipelines":
        return import_module("quorumlog.spark.pipelines")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
