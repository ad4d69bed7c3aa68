"""What a leader sends of its log, from memory or from files.

Read in this order: `recent_batches` (the newest entries, in memory), `catch_up_pace` (how much a
follower far behind gets), `feeding` (how far it is, for people), `push_sender` (finds the bytes that a
dispatcher ordered, and sends them), `install_sender` (the start of the log, for who lacks what is gone),
`snapshot_sender` (the state of its machines, for who asks).
"""
