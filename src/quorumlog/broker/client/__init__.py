"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_results`, `broker_verbs`, `broker_calls` (the engine of all clients, as it is
here), `async_broker_client`, `connected` and `blocking_broker_client`, `switching` (who leads and who
counts, by an operator), `groups` (producers, consumers).
"""
