"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_results`, `broker_verbs`, `master_route` (which of several brokers is asked),
`blocking_link`, `blocking_broker_client`, `switching` (who leads and who counts, by an operator),
`async_link`, `async_broker_client`, `groups` (producers, consumers).
"""
