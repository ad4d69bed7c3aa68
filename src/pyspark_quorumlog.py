"""Found by Spark: a module named `pyspark_*` with a `DefaultSource` is registered under its name.

So `spark.read.format("quorumlog")` works without a register call wherever quorumlog is installed.
"""

from quorumlog.spark.ledger_data_source import LedgerDataSource as DefaultSource

__all__ = ["DefaultSource"]
