"""Archives that are tables too: the same Parquet files, named by a Delta log or by an Iceberg catalog.

The archive lies in the table's directory `_quorumlog`, which the clean-ups of both formats pass over.
The table has its files under second names (links): files that a clean-up removes from a table are still
archived.

Read in this order: `target` (names, and the interface of a table), `delta`, `iceberg`.
"""
