"""What follows from a log's control entries: values in, values out.

Read `control_entries` (what they say), `log_state` (the value that they lead to), then `log_states`
(that value at both ends of what is not committed yet).
"""
