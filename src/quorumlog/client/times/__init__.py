"""What time it was in the log: `mark_verbs` (asking a member for a time mark)."""
