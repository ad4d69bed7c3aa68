"""The message store on the replicated log, which takes the place of the classic commit log; a member's
role is its broker's role.

Read in this order: `message_machine` (records as entries, and their state machine), `sessions`,
`dledger_broker` (role, log, groups and broker, its port, and brokers for tests).
"""
