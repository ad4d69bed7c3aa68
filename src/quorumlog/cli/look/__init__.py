"""Commands that look at a stopped member's directory.

Read in this order: `inspect`, `verify`, `recover`.
"""
