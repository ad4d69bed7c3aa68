"""`option("view", "kafka")`: the records of Kafka's topics on a log as rows.

Read in this order: `record_rows` (a batch of a producer as columns), `kafka_view` (which entries have
records, and their offsets), `stopped_topics` (the same for a stopped member's directory).
"""
