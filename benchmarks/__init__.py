"""How fast a cluster of three is on this machine, and how long it is without a leader.

`python -m benchmarks` (or `make bench`) starts three members as processes, runs the loads of
`quorumlog bench` on them beside the raw limit of the disk, then kills and stops leaders and times the
next acknowledged append. Figures go to the terminal, to JSON lines and to a chart. Nothing here
passes or fails: a target that is not met is shown as such.
"""
