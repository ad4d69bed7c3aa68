"""What strikes a simulated cluster.

Read in this order: `fairness` (what may be lost while members change), `fault_context` (whom, how long,
how fairly), `process_faults`, `network_faults`, `disk_faults`, `hanging_disks`, `damage_faults`
(synced bytes that go bad), `link_faults`, `faults` (all kinds together).
"""
