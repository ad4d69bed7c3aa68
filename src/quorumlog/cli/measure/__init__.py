"""`quorumlog bench`: how fast a running group is, and a disk.

Read in this order: `bench` (with a group), `flush_cost` (without one), `bench_tables` (what both print).
"""
