"""Topics, consumer groups and their offsets as replicated state, and what the master does for them.

Read in this order: `group_state` (what follows from the commands of `wire/group_commands`),
`group_machine`, `topic_table` (which queues there are), `allocation` (which member reads which queue),
`group_members` (who is there, in the master's memory), `group_log` (what all of it needs of the log
below), `raft_group_log`, `state_follower`, `proposals`, `offset_commits`,
`rebalancer`, `delay_scheduler`, `topic_retention`, `group_sessions`, `group_extension` (what a broker
answers), `classic_group_log`.
"""
