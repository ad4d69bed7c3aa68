"""What is between a member and its clients.

Read in this order: `append_streams` (the order of a stream's appends), `producer_requests` (the sessions
of producers), `reader_requests` (readers by name, and what keeps segments), `client_session` (what one
client asks).
"""
