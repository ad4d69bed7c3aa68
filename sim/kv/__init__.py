"""Stores in virtual time: members that fail, clients that note what they saw, checkers of what it means.

Read in this order: `linearizability` (whether a history could have happened one by one), `histories`
(what clients saw), `sim_sessions` (the service on a simulated member), `sim_clients`, `promises` (the
checkers), `store_run` (one run).
"""
