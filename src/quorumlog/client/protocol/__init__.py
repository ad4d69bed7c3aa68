"""The client without its sockets, driven by the blocking and the asyncio client. Sans-IO throughout.

Read in this order: `client_timings`, `client_requests` (a request, a stream, a connection),
`cluster_view` (who leads), `link_table`, `request_encoding`, `request_router` (where a request goes),
`order` (appends that follow each other), `request_tracker` (what becomes of a request) and
`client_protocol` (what becomes of connections); then what the larger verbs are made of: `append_joiner`,
`append_window`, `read_plan`.
"""
