"""How bytes come and go: one frame, one greeting, one listener and one registry of errors for all ports.
Sans-IO but for `connection` and `listener`.

Read in this order: `frame` (bytes), `hello` (what is said first), `products` (which port that is for),
`peer_hello` (what two members compare in it), `errors` (refusals as messages), `limits` (what the
connections of a process may take), `connection` (frames over TCP), `listener` (a port).
"""
