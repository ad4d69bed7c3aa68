"""Load generators, and measurements of a running group and of a disk.

`quorumlog bench` and the repository's `benchmarks/` call it.

Read in this order: `figures` (measured values), `running_group` (the loaded group, and its usage),
`workloads` (the loads, and one in a closed loop), `raw_writer` (bare connections), `raw_limit` (the
limit of the disk alone), `closed_loop` (all loads beside it), `flush_cost` (the cost of a sync),
`machine`.
"""
