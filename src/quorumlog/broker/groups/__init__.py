"""Topics, consumer groups and their offsets as replicated state, and what the master does for them.

Read in this order: `group_state` (what follows from the commands), `rebalancer` (who
is there, and who reads what), `delays`, `group_extension` (what a broker answers, on the replicated
log), `classic_group_log` (and on the log of a classic broker).
"""
