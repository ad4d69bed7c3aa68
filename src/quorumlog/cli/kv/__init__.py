"""quorumlog kv: the key-value store on the command line."""
