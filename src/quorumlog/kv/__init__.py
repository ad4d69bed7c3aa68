"""The key-value store: keys with history, leases, watches and transactions, on the log.

Read in this order: `requests` (what is asked and answered), `errors`, `store` (what the committed
commands have made of the keys).
"""
