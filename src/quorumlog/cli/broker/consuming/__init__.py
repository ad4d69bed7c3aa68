"""quorumlog broker topic, group, dlq and consume: topics and consumer groups.

Read in this order: `topics`, `groups`, `dead_letters`, `consume`.
"""
