"""What clients and brokers say to each other, in the log's own frames.

Read in this order: `broker_messages`, `broker_framing`.
"""
