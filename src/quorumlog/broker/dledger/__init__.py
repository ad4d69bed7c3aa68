"""The message store on the replicated log: the commit log that elects and replicates itself takes the
place of the classic one, and the role of a member is the role of its broker.

Read in this order: `message_entries` (a record as an entry), `log_resets` (where the log's time began
anew), `message_filler` (what the leader writes into it), `message_machine` (what every member makes of
it), `broker_role` (who is master), `dledger_commit_log` (the `MessageLog`),
`extension` (what else a broker may do), `dledger_broker` (all of it, without sockets), `dledger_door`
(its port), `local_brokers` (for tests).
"""
