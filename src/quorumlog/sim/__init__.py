"""The same LedgerNode and the same store in virtual time, on a simulated network and disk.

One seed decides a run: who fails when, which bytes a power loss leaves, in which order messages arrive.
Read in this order: `profile` (what a run is like), `trace`, `operations`, `machines`, `disk/`,
`network/`, `wall_clock`, `member`, `work/`, `faults/`, `cluster`, `checkers/` (who
watches), `run`, `losses` (of lossy disks), `many_runs`, `coverage`."""
