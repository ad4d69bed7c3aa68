"""Topics, consumer groups and their offsets as replicated state, and what the master does for them.

Read in this order: `group_state` (what follows from the commands), `rebalancer` (who
is there, and who reads what), `delays`, `group_service` (what a broker answers),
`classic_group_log` (what of it lies in the log of a classic broker).
"""
