"""Sources of a query's entries.

Read in this order: `ledger_source` (their common interface), `server_source` (a running group),
`directory_source` (a stopped member's directory), `union_source` (an archive and one of these after it).
"""
