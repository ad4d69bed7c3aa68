"""Applications in the process of a member.

Read in this order: `state_machines` (what the log drives), `doors` (a protocol and a port of its own).
"""
