"""Entries in segments, and the index beside them.

Read in this order: `segment_scan` (records, one behind the other), `placement` (where a batch will lie),
`segment` (one segment), `segment_list` (all of them), `segment_view` (the same, only to be looked
at), `recent_units`, `entry_index`, `log_reader` (reading), `ledger_space` (room ahead of the end),
`flush` (syncing), `page_cache` (giving memory back), `term_run_search` (the terms at a start).
"""
