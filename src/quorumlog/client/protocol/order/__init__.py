"""Appends that enter the log in the order of their submission.

Read in this order: `ordered_streams` (nothing unknown is repeated), `producer_session` (under a
producer's numbers, until all is known).
"""
