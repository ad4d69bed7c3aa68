"""A log's client on the engine of all clients (`net/rpc`). Sans-IO throughout.

Read in this order: `client_requests` (a request, a stream, and their frames), `append_order` (ordered
appends), `client_protocol`; then the parts of the larger operations: `appending`, `read_plan`.
"""
