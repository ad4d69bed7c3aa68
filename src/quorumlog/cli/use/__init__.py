"""Commands that use a running log, as its clients.

Read in this order: `reach`; `machine_results`, `append`, `ask`; `read` with `read_sources` (a cluster, a
stopped member's directory) and `entry_formats`; `status` with `status_table` and `readers_table`.
"""
