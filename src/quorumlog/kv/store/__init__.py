"""The state: what the committed commands have made of the keys.

Read in this order: `engine` (ordered bytes, and where), `memory_engine`, `rocks_engine`, `keyspace`
(keys, their versions and leases), `answer_room` (how large an answer may get), `ranges` (reading them),
`transactions` (what a command does), `sweeping` (what compaction leaves to be deleted),
`snapshot_format`, `changes` (who hears of changes), `machine`.
"""
