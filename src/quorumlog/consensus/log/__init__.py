"""The log as the core knows it: indices and terms, no bytes.

Read in this order: `term_runs` (which term wrote which indices), `membership_history` (who votes from
which index on), `damaged_indices` (entries that the disk cannot show, and what is not said meanwhile),
`log_changes` (what the next Ready does to the log; what is durable).
"""
