"""What drives the protocol on sockets.

Read in this order: `io_thread` (one thread, for the blocking client), `io_loop` (asyncio's loop).
"""
