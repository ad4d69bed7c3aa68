"""Where this member's log begins: `log_drops` has its first segments go, `log_replacement` puts a
leader's log in place of one that ends below.
"""
