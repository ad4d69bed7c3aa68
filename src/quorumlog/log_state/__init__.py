"""The state computed from a log's control entries: values in, values out.

Read `control_entries` (their contents), `producers` (each producer's entries in the log), then
`log_state` (the append time of an entry, the state after all control entries, and that state at both
ends of the uncommitted entries).
"""
