"""Kafka's protocol on the log: topics with partitions inside a group, for Kafka's own clients.

Read in this order: `places` (batches of a topic, for readers of the log), `machine` (topics, batches and
offsets as they follow from entries), `records` (a batch of a producer), `groups` (members of a consumer
group), `expiry` (offsets of groups without members), `codec` (messages as bytes), `forwarding` (requests
that a follower passes to its leader), `service` (leadership, and how an entry is appended), `commands`
(requests about several topics or groups), then the answers to requests: `producing`, `fetching`,
`topics`, `group_requests` and `login`; and `endpoint` (the port, and the order of a connection's
answers); `admin` is a client of it.
"""
