"""Kafka's protocol on the log: topics with partitions inside a group, for Kafka's own clients.

Read in this order: `places` (what readers of the log ask the state machine), `machine` (topics,
batches and offsets as they follow from entries), `records` (what a producer hands over), `groups` (who
is in a consumer group), `codec` (messages as bytes), `forwarding` (what a follower hands on to its
leader), `service` (who leads, and how an entry is appended), then what answers requests: `producing`,
`fetching`, `topics`, `group_requests` and `login`; and `endpoint` (the port, and the order of a
connection's answers); `admin` is a client of it.
"""
