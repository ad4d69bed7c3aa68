"""Pipelines over whole logs: archive, audit, stats, replay, compact. Each may be stopped and repeated.

None needs Spark: one definition runs in threads here, and on Spark's executors
(`quorumlog.spark.pipelines`).

Read in this order: `places` (where a log is), `engine` (where works run), `archive_folders` (where an
archive's files lie), `archive_parts` and `archive` (archives), `tables` (archives that are tables),
`archiving` (making one), `auditing`. Then results from entries: `keys`, `statistics`, `replaying`,
`compacting`.
"""
