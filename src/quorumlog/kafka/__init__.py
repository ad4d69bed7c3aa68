"""Kafka's protocol on the log: topics with partitions inside a group, for Kafka's own clients."""
