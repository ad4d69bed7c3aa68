"""A broker as a server: one store, one port.

Read in this order: `broker_service` (what a connection needs of a broker), `put_queue`, `waiting_pulls`,
`replica_requests`, `broker_session`, `broker_port`, `broker_roles` (who is master), `broker_server`.
"""
