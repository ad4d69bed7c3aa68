"""Topics, consumer groups and their offsets as replicated state, and their service on the master.

Read in this order: `group_state` (the state machine), `rebalancer` (members and assignments), `delays`,
`group_service` (the broker's requests), `classic_group_log` (its entries in the log of a classic
broker).
"""
