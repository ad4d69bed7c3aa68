"""Master and slaves: one broker writes, the others follow its commit log byte for byte.

Read in this order: `acknowledgements`, `links`, `rocketmq_links`, `replica_store`, `replica_file`,
`replica`, `ha_service`.
"""
