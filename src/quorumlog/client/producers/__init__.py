"""Producers and their sessions: `producer_verbs` (what the log remembers of them)."""

ONE_SESSION = (
    "a producer has one session at a time, which stays with the process that has forked: connect in this"
    " one with a producer_id of its own"
)
