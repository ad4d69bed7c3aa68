"""Commands about who belongs to a log: its members, producers and readers, and what they keep of it.

Read in this order: `member`, `transfer`, `clock`, `producers`, `readers`, `why_kept` with `kept_offline`
(what a stopped member's directory says).
"""
