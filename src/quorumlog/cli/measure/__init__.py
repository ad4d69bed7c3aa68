"""`quorumlog bench`: how fast a running group is, and a disk.

Read in this order: `bench` (both commands), `bench_tables` (what they print).
"""
