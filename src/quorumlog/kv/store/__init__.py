"""The state: what the committed commands have made of the keys.

Read in this order: `engine` (ordered bytes, and where), `keyspace` (keys, versions and leases, ranges,
who hears of changes), `machine` (what a command does, snapshots, and what compaction leaves).
"""
