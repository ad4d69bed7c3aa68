"""How bytes come and go: one frame, one greeting and one listener for every port. Sans-IO but for
`connection` and `listener`.

Read in this order: `frame` (bytes), `hello` (what is said first), `peer_hello` (what two members compare
in it), `strangers`, `errors` (refusals as messages), `limits` (what connections may take), `connection`
(frames over TCP), `listener` (a port).
"""
