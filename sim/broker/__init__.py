"""Brokers on a replicated log in virtual time: members that fail, producers and consumers that note what
they were told, and what it has to add up to.

Read in this order: `sim_brokers` (a broker on each process of a member), `sim_clients`, `broker_run`
(one run, and its promises).
"""
