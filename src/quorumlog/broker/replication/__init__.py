"""Master and slaves: one broker writes, the others follow its commit log byte for byte.

Read in this order: `roles`.
"""
