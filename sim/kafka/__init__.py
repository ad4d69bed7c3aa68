"""Clients of Kafka in virtual time: members that fail, producers and consumers that note what they saw.

Read in this order: `batches` (records as a producer makes them), `sim_members` (the service on a
simulated member), `sim_clients` (an idempotent producer, a member of a group), `kafka_run` (one run, and
what must be so in the end).
"""
