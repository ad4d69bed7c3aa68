"""The flush services, by RocketMQ's names.

Read in this order: `flush_services`, `service_thread`, `store_checkpoint`.
"""
