"""`option("view", "kafka")`: the records of Kafka's topics on a log as rows.

Read in this order: `record_rows` (a batch of a producer as columns), `kafka_view` (which entries those
are, and with which offsets), `stopped_topics` (the same of a stopped member's directory).
"""
