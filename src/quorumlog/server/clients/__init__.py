"""What is between a member and its clients.

Read in this order: `append_streams` (the order of a stream's appends), `producer_requests` (the sessions
of producers), `machine_questions` (to state machines), `log_questions` (how the log lies, times, readers
by name), `client_session` (what one client asks).
"""
