"""Networking: one frame format, one greeting, one listener, one registry of errors and one client engine
for all ports. Sans-IO but for `connection`, `encryption`, `listener`, `io_loop` and `loop_thread`.

Read in this order: `frame` (bytes), `hello` (what is said first, and for which port), `strangers` (other
software), `peer_hello` (what two members compare), `errors` (refusals as messages), `limits` (what
connections may take), `quotas` (and one user, or one address), `tls` (certificates, and whose they
are), `handshakes` (how many at a time), `connection` (frames over TCP), `encryption` (TLS below them),
`logins` (tokens in place of passwords), `access` (who it is, and may do what), `credentials` (how a
client says so), `listener` (a port), `rpc` (who is asked, and what becomes of it), `system` (time, and
why a connection failed), `io_loop` (the loop under a client), `loop_thread` (asyncio clients for
programs that block).
"""
