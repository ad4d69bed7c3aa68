"""quorumlog broker: a message store as a server, used, and looked at."""
