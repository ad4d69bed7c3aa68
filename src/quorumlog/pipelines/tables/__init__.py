"""Archives that are tables too: the same Parquet files, named by a Delta log or by an Iceberg catalog.

The archive lies in the table's directory `_quorumlog`, which the clean-ups of both formats pass over.
The table has its files under second names (links): what a clean-up takes from a table is still archived.

Read in this order: `target` (what a name means, and what a table must do), `delta`, `iceberg`.
"""
