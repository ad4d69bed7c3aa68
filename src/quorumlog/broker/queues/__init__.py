"""What is derived from the commit log: queues by topic, and an index by key and time.

Read in this order: `consume_queue`, `queue_ends`, `open_files`, `consume_queues`, `index_file`,
`index_service`, `dispatcher`, `reput_message_service`; `machine_snapshot` is what a replicated log saves
of them.
"""
