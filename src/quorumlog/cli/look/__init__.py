"""Commands that look at a stopped member's directory, and at members that are only simulated.

Read in this order: `inspect`, `verify`, `recover`, `sim`.
"""
