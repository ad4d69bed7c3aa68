"""State machines of a group, as clients reach them: `machine_handles`, and `machine_verbs` (what is
changed about them)."""
