"""Master and slave on sockets: RocketMQ's names, on one event loop and a disk thread.

Read in this order: `ha_connection`, `ha_client`, `ha_service`.
"""
