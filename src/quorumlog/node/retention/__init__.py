"""What may go from the front of the log, and who has not read it yet.

Read in this order: `reader_moves` (readers that the cluster keeps by name), `segments_kept` (what keeps
each segment), `border_times` (how old a segment is), `retention` (the oldest ones go).
"""
