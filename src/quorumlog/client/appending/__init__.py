"""A stream of appends, for who iterates its receipts. Read in this order: `append_stream` (who blocks),
`async_source` (what a stream takes from that makes it wait), `async_append_stream`.
"""
