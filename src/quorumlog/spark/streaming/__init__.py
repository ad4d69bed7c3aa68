"""Micro-batches. Read in this order: `group_stream` (one group's offsets), `stream_reader` (what Spark
calls, for all groups of a query), `refused_stream` (in its place where the options are wrong).
"""
