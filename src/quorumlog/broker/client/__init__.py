"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_results`, `broker_verbs`, `blocking_broker_client`, `switching`,
`async_broker_client`.
"""
