"""Kafka's own clients, and Kafka's own broker beside ours."""
