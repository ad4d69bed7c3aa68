"""Readers that the cluster keeps, and what reads give.

Read in this order: `read_results` (one by one, until it is broken off), `reader_rows` (how far each
reader is behind), `reader_verbs` (what the leader is asked), `named_readers` (what `log.reader(name)`
gives).
"""
