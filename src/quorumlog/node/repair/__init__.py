"""Damage that is found while a member runs: looked for, and healed with what other members hold.

Read in this order: `repairer` (settles damage and asks for the bytes), `scrubber` (looks for it).
"""
