"""Reads that are fresh: how a member knows that it has not missed what others were told.

Read in this order: `read_index` (a leader: a round of heartbeats, shared by all who wait),
`read_questions` (who follows: one question to the leader, shared as well), `freshness` (how old what a
member holds may be, without asking anybody), `reads` (which of them counts now).
"""
