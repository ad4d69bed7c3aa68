"""What strikes a simulated cluster.

Read in this order: `fault_context` (whom, how long, how fairly), `process_faults`, `network_faults`,
`disk_faults`, `damage_faults` (synced bytes that go bad), `lossy_disk_faults`, `link_faults`,
`wall_clocks`, `faults` (all kinds together), `other_mode`, `segment_drops` (first segments go).
"""
