"""Load generators, and what they measure of a running group and of a disk.

`quorumlog bench` parses, calls what is here and prints; the repository's `benchmarks/` call it too.

Read in this order: `figures` (what is promised of what is measured), `running_group` (what is loaded,
and what it has used), `workloads` (the loads, and one in a closed loop), `raw_writer` (bare
connections), `raw_limit` (what the disk alone allows), `closed_loop` (all loads beside it),
`flush_cost` (what a sync costs), `machine`.
"""
