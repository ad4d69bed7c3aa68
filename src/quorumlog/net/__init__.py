"""Networking: one frame format, one greeting, one listener, one registry of errors and one client engine
for all ports. Sans-IO but for `connection`, `encryption`, `listener`, `io_loop` and `loop_thread`.

Read in this order: `frame` (bytes), `hello` (the greeting, and its port), `strangers` (other software),
`peer_hello` (the check between two members), `errors` (refusals as messages), `limits` (limits of all
connections), `quotas` (limits of one user or address), `tls` (certificates and their owners),
`handshakes` (their concurrency), `connection` (frames over TCP), `encryption` (TLS below them), `logins`
(tokens in place of passwords), `access` (authentication and authorization), `credentials` (a client's),
`listener` (a port), `rpc` (routing and outcomes of requests), `system` (time, and causes of failed
connections), `io_loop` (the loop of an asyncio client), `loop_thread` (blocking clients).
"""
