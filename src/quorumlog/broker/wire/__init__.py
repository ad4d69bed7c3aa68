"""What clients and brokers say to each other, in the log's own frames.

Read in this order: `group_messages`, `broker_messages`, `broker_framing`, `group_names`,
`group_commands` (what is said to topics and groups).
"""
