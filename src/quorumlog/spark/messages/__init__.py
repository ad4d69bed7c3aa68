"""`option("view", "messages")`: the messages of a message store as rows.

Read in this order: `message_options`, `message_rows`, `message_sources`, `message_reader`.
"""
