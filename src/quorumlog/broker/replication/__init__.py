"""Master and slaves: one broker writes, the others follow its commit log byte for byte.

Read in this order: `roles`, `protocol`, `replica_store`, `replica_file`, `group_transfer_service`,
`replica_core`, `replica_master`, `replica`, `service`.
"""
