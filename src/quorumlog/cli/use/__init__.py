"""Commands that use a running log, as its clients.

Read in this order: `append`, `read` (also of a stopped member's directory), `status`, `transfer`.
"""
