"""Clients of a broker, for programs with threads and for asyncio.

Read in this order: `broker_results`, `broker_verbs`, `blocking_broker_client`, `async_broker_client`;
of a broker on a replicated log `master_link`, `async_producer`, `consumer_queue`, `async_consumer`,
`async_broker_admin`, `blocking_groups`.
"""
