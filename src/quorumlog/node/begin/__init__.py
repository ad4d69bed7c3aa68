"""Where the log of this member begins.

Read in this order: `log_drops` (its first segments go), `snapshot_fetcher` (snapshots of other members
come), `log_replacement` (a leader's log takes its place).
"""
