"""Commands about what a log keeps, and for whom.

Read in this order: `readers` (who reads by name), `why_kept` (what keeps each segment) with
`kept_offline` (what a stopped member's directory says).
"""
