"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_results`, `broker_verbs`, `master_route` (which of several brokers is asked),
`blocking_link`, `blocking_broker_client`, `async_link`, `async_broker_client`; with topics and groups
`master_link`, `async_producer`, `consumer_queue`, `async_consumer`, `async_broker_admin`,
`blocking_groups`.
"""
