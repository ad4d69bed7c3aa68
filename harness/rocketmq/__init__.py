"""RocketMQ's Java classes, fetched from Maven Central by Maven and kept outside the repository.

Read in this order: `store_tool` (its store, told what to do by the line), `java_broker` (its broker, and
a load).
"""
