"""A member's service for its clients.

Read in this order: `requests` (consistency, and a function for each kind of request), `needs` (the
rights each needs), `hidden_users` (entries about users), `client_reads` (streams of appends, and
entries), `client_session` (one client's requests and replies).
"""
