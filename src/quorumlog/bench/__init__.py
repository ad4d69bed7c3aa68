"""Load generators, and what they measure of a running group and of a disk.

`quorumlog bench` parses, calls what is here and prints; the repository's `benchmarks/` call it too.

Read in this order: `workloads` (loads in closed loops, and the figures of one), `raw_writer` (bare
connections), `open_loop` (latency at given rates), `raw_limit` (what the disk alone allows),
`local_processes` (what the members on this machine have used).
"""
