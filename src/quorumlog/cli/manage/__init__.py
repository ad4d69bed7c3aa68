"""Commands about who belongs to a log: its members, producers, readers and state machines, and what is
kept of it.

Read in this order: `member`, `transfer`, `upgrade`, `clock`, `machine`, `producers`, `readers`,
`why_kept` with `kept_offline` (what a stopped member's directory says), `ca` with `certificates` (who
they are by TLS).
"""
