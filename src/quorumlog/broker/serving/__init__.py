"""A broker as a server: one store, one port.

Read in this order: `put_queue`, `waiting_pulls`, `broker_session`, `broker_server`.
"""
