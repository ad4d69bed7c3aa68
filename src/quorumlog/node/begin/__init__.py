"""Where this member's log begins: `log_drops` has its first segments go."""
