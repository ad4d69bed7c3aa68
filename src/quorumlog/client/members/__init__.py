"""Who is in the group: `member_verbs` (asking the leader to change it)."""
