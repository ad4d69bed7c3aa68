"""Pipelines over whole logs: archive, audit, stats, replay, compact. Each may be stopped and repeated.

None needs Spark: reading is bound by checking digests, and two threads of one process do that as fast as
a cluster's tasks would on the same cores. What Spark adds is in `quorumlog.spark.pipelines`.

Read in this order: `places` (where a log is), `archive_rows`, `archive_parts` and `archive` (what an
archive is), `tables` (archives that are tables), `archiving` (making one), `auditing`.
Then what is made of entries: `keys`, `statistics`, `replaying`, `compacting`.
"""
