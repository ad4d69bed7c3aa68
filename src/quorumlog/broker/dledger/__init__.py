"""The message store on the replicated log: the commit log that elects and replicates itself takes the
place of the classic one, and the role of a member is the role of its broker.

Read in this order: `message_machine` (records as entries, and what members make of them), `sessions`,
`dledger_broker` (role, log, groups and broker, its port, and brokers for tests).
"""
