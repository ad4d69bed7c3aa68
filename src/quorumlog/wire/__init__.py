"""How messages look on a connection, and the client without its sockets. Sans-IO throughout.

Read in this order: `framing` (bytes) and `client_messages` (what clients and servers say, and errors on
the wire), `peer_hello` (what members compare in their first frames); then the client: `client_timings`, `client_requests` (a request, a stream, a connection),
`cluster_view` (who leads), `link_table`, `request_encoding`, `request_router` (where a request goes),
`ordered_streams`, `request_tracker` (what becomes of it) and `client_protocol` (of connections);
then what the larger verbs are made of: `append_joiner`, `append_window`, `read_plan`, `status_survey`.
"""
