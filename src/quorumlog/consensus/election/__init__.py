"""Who leads.

Read in this order: `campaign` (one round of votes, and its outcome), `leader_elector` (silence,
pre-vote, vote, heartbeats, stepping down).
"""
