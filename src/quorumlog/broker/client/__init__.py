"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_calls`, `async_broker_client`, `async_producer`, `async_consumer`,
`async_broker_admin`, `blocking_shells` and `blocking`, `switching` (master and in-sync set, changed by
an operator).
"""
