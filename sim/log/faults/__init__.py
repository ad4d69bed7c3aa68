"""What strikes the log in our own runs alone.

Read in this order: `fairness` (what may be lost), `lossy_disk_faults`, `sectors` (go bad),
`wall_clocks`, `releases` (the group is upgraded), `other_mode` (of a flush), `segment_drops` (first
segments go).
"""
