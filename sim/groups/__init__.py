"""Consumer groups and delayed messages in virtual time, held to what their clients were told.

Read in this order: `sim_groups` (brokers with groups), `sim_members` (who sends, reads and asks),
`group_run`.
"""
