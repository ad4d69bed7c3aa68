"""A broker as a server: one store, one port.

Read in this order: `put_queue`, `waiting_pulls`, `replica_requests`, `broker_session`, `broker_server`.
"""
