"""How bytes come and go: one frame and one greeting for every port. Sans-IO but for `connection`.

Read in this order: `frame` (bytes), `hello` (what is said first), `peer_hello` (what two members compare
in it), `errors` (refusals as messages), `connection` (frames over TCP).
"""
