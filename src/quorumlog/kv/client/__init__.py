"""Clients of the store.

Read in this order: `codecs` (of which type values are), `values` (what calls give), `asking`
(what is asked of the members, and what became of it), `watching`, `leasing`, `locks` (locks and
elections), `call_options`, `async_store` (every verb), `blocking_store` (the same for programs without
asyncio).
"""
