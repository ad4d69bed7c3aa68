"""Master and slave as values: what they say to each other, and what they make of it. No sockets, files
or clocks.

Read in this order: `record_assembler`, `acknowledgements`, `ha_frames`, `old_dialect` (of the
release before), `master_link`, `slave_link`, `rocketmq_links`.
"""
