"""Producers and their sessions: `producer_verbs` (what the log remembers of them)."""
