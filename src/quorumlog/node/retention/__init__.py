"""What may go from the front of the log, and who has not read it yet.

Read `reader_moves` (readers that the cluster keeps by name).
"""
