"""Clients of the store.

Read in this order: `values` (what calls give, and codecs), `link` (one connection), `router` (which
member is asked, and what became of it), `watching`, `leasing`, `locks` (locks and elections),
`async_store` (every verb), `blocking_store` (the same on a thread of its own).
"""
