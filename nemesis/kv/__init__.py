"""The key-value store as processes, with its clients, broken in every way: python -m nemesis.kv.

Read in this order: `over_etcd` (a client of etcd's API), `workers` (clients that note what they see),
`checking` (whether it can be true), `run` (faults, one after the other).
"""
