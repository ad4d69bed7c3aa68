"""Clients of the store.

Read in this order: `values` (of which type values are, and what calls give), `asking` (what is asked of
the members, and what became of it), `watching`, `leasing` (leases, locks, elections), `async_store`
(every operation), `blocking_recipes` and `blocking_store` (the same for programs without asyncio).
"""
