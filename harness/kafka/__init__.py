"""Kafka itself beside ours: its broker and its Java clients from Maven Central, and its wire by hand.

Read in this order: `wire` (one connection, any message), `members` (ours),
`real_broker`, `java_client`.
"""
