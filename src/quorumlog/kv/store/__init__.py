"""The state: what the committed commands have made of the keys.

Read in this order: `engine` (ordered bytes, and where), `rocks_engine`, `keyspace` (keys, their versions
and leases), `ranges` (reading them, as far as an answer has room), `transactions` (what a command does),
`snapshot_format`, `changes` (who hears of changes), `machine` (all of it, and what compaction leaves).
"""
