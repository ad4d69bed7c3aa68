"""What is between a member and its clients.

Read in this order: `requests` (how fresh an answer is, and a function for each kind of request),
`needs` (which right each takes), `hidden_users` (what a log says of users), `client_reads` (streams of
appends, and entries), `client_session` (what one client asks, and the one
reply).
"""
