"""What follows from a log's control entries: values in, values out.

Read `control_entries` (what they say), `producers` (what each producer has in the log), then `log_state`
(when an entry counts as appended, the value that all of them lead to, and that value at both ends of
what is not committed yet).
"""
