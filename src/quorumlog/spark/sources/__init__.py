"""Where a query's entries come from.

Read in this order: `ledger_source` (what a plan and its tasks ask of any of them), `server_source` (a
running group), `directory_source` (a stopped member's directory), `union_source` (an archive and one of
these after it).
"""
