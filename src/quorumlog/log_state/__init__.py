"""What follows from a log's control entries: values in, values out.

Read `control_entries` (what they say), `counted_times` (when an entry counts as appended), `producers`
(what each producer has in the log), `log_state` (the value that all of them lead to), then `log_states`
(that value at both ends of what is not committed yet).
"""
