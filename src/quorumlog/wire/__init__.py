"""How messages look on a connection, and the client without its sockets. Sans-IO throughout.

Read in this order: `framing` (bytes), `client_messages` (what clients and servers say, and errors on
the wire), `client_requests`, `cluster_view` and `client_protocol` (what becomes of a request),
`append_window`, `read_plan` and `status_survey` (what the larger verbs are made of).
"""
