"""The messages of one machine: a commit log, and the queues and the index that follow from it.

Read in this order: `log_files`, `flush`, `commit_log`, `queues`, `index`, `dispatch`, `store_reader`,
`java_store`, `message_store`.
"""
