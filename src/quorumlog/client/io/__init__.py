"""`io_thread`: one thread that drives the protocol on sockets, for the blocking client."""
