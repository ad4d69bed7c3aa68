"""Clients of the store.

Read in this order: `values` (types of values and results), `asking` (requests and their outcomes),
`watching`, `leasing` (leases, locks, elections), `async_store` (every operation), `blocking_recipes` and
`blocking_store` (the same for programs without asyncio).
"""
