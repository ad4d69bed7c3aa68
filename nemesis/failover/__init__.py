"""Brokers with a coordinator: killed, paused and cut off from it while messages are sent; what was
acknowledged must be there.

    senders ---> brokers ---> brokers            directly
    brokers ---> proxy   ---> coordinator        cut for one broker at a time

Read in this order: `group` (the processes), `senders`, `run` (faults, and the check).
"""
