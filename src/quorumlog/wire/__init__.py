"""How messages look on a connection: what both ends of it speak. Sans-IO.

Read in this order: `client_message` (what they all have), `read_promise` (how fresh an answer has to
be), `client_messages` (all that clients and servers say), `field_names` (what does not fit, by name),
`nesting` (how deep a message or a command may go).
"""
