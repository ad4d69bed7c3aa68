"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_results`, `broker_verbs`, `master_route` (which of several brokers is asked),
`blocking_link`, `blocking_broker_client`, `switch_rules` (what answers say of a lost master),
`switching`, `async_link`, `async_broker_client`, `groups` (producers, consumers).
"""
