"""How bytes come and go: one frame, one greeting, one listener and one registry of errors for all ports.
Sans-IO but for `connection`, `listener` and `loop_thread`.

Read in this order: `frame` (bytes), `hello` (what is said first, and for which port), `strangers` (other
software), `peer_hello` (what two members compare), `errors` (refusals as messages), `limits` (what
connections may take), `connection` (frames over TCP), `listener` (a port), `loop_thread` (asyncio
clients for programs that block).
"""
