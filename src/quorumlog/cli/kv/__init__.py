"""quorumlog kv: the key-value store on the command line.

Read in this order: `rows` (how keys and values are given and printed), `kv_options`, `kv_serve`, `keys`,
`waiting` (watch, lock, elect), `guardian` (of a command under a lock), `leases`, `whole_store`, `app`.
"""
