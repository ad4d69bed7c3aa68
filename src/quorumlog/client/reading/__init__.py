"""Which member a read goes to, and what it is promised. Read in this order: `read_choice`,
`read_requests`.
"""
