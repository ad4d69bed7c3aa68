"""How bytes come and go: one frame, one greeting, one listener and one registry of errors for all ports.
Sans-IO but for `connection`, `encryption` and `listener`.

Read in this order: `frame` (bytes), `hello` (what is said first, and for which port), `strangers` (other
software), `peer_hello` (what two members compare), `errors` (refusals as messages), `limits` (what
connections may take), `tls` (certificates, and whose they are), `handshakes` (how many at a time),
`connection` (frames over TCP), `encryption` (TLS below them), `listener` (a port).
"""
