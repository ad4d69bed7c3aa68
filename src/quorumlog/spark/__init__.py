"""The log on Apache Spark: `spark.read.format("quorumlog")` and a session that is ready for it.

Read in this order: `ledger_data_source` (what Spark calls), `options`, `offsets` (which entries a
query means), `partitions` (how they become tasks), `batch_reader` (one task), `range_check` (what
every task proves about its range), the room `sources` (where entries come from), `rows` (entries as
Arrow columns). `session` and `java` set Spark up on a bare machine.
"""

from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.session import session

__all__ = ["LedgerDataSource", "session"]
