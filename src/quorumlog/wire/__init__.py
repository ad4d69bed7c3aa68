"""Messages on a connection, for both its ends. Sans-IO.

Read in this order: `client_message` (common fields), `read_promise` (read consistency),
`client_messages` (all requests and responses), `field_names` (validation errors by field name),
`nesting` (how deep a message or a command may go).
"""
