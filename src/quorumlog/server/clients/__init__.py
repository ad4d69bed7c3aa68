"""What is between a member and its clients.

Read in this order: `append_streams` (the order of a stream's appends), `producer_requests` (the sessions
of producers), `read_promises` (how fresh an answer is), `client_reads` (entries), `machine_questions`
(to state machines), `log_questions` (how the log lies, and times), `reader_requests` (readers by name,
and what keeps segments), `member_requests` (who is in the group), `order_requests` (what an
operator orders), `client_session` (what one client asks).
"""
