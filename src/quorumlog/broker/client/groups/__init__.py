"""Clients of brokers with topics and consumer groups, which follow the master.

Read in this order: `async_producer`, `consumer_queue`, `retries`, `async_consumer`,
`async_broker_admin`, `blocking_run`, `blocking_groups`.
"""
