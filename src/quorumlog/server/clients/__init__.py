"""What is between a member and its clients.

Read in this order: `append_streams` (the order of a stream's appends), `read_promises` (how fresh an
answer is), `client_reads` (entries), `requests` (a function for each kind of request beside those),
`client_session` (what one client asks, and the one reply).
"""
