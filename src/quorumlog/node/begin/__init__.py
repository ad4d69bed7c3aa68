"""Where this member's log begins.

Read in this order: `log_drops` (its first segments go), `log_replacement` (a leader's log takes the
place of one that ends below), `log_begin` (both, and what others are sent of it).
"""
