"""Messages, and the records that they are stored as (docs/message-store.md).

Read in this order: `message`, `record`, `record_columns`, `property_columns`, `java_strings`,
`record_batch`, `record_scan`, `moved_records`.
"""
