"""The state of the keys after the committed commands.

Read in this order: `engine` (ordered bytes, and where), `keyspace` (keys, versions and leases, ranges,
listeners for changes), `machine` (commands, snapshots and compaction).
"""
