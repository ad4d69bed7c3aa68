"""Who leads.

Read in this order: `campaign` (one round of votes, and its outcome), `heartbeat_answers` (who hears a
leader), `leader_elector` (silence, pre-vote, vote, heartbeats, stepping down).
"""
