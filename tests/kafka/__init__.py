"""Kafka's protocol on the log."""
