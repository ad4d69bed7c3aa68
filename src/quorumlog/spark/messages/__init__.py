"""`option("view", "messages")`: the messages of a message store as rows.

Read in this order: `queue_offsets`, `message_options`, `message_rows`, `message_sources`,
`message_reader`, `message_stream`; and of rows that become messages `message_bodies`.
"""
