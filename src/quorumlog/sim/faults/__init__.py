"""What strikes a simulated cluster.

Read in this order: `fairness` (what may be lost while members change), `fault_context` (whom, how long,
how fairly), `process_faults`, `network_faults`, `disk_faults`, `hanging_disks`, `damage_faults`
(synced bytes that go bad), `lossy_disk_faults`, `link_faults`, `wall_clocks`, `releases` (the
group is upgraded), `faults` (all kinds together), `other_mode`, `segment_drops` (first segments go).
"""
