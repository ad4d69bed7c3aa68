"""`option("view", "messages")`: the messages of a message store as rows.

Read in this order: `message_options`, `message_sources`, `message_stream`; and of rows that become
messages `message_bodies`.
"""
