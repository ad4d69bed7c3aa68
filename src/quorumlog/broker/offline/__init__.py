"""Stores that do not run: looked at, verified, converted, and taken over by a replicated log.

Read in this order: `offline_store`, `offline_ledger`, `old_log`, `takeover`.
"""
