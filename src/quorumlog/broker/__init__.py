"""A message store: commit log, queues, index, flush services."""
