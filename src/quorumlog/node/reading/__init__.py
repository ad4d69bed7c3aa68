"""What a member may hand out of its log, and whether it may say where the log ends.

Read in this order: `readable_log` (what of it can be read, and from where), `confirmations` (who waits
to hear that this member still leads), `mark_finder` (what time it was where), `reader_lags` (how
much named readers have not read yet).
"""
