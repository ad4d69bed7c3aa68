"""The log of `quorumlog.testing` with all that works on it, strikes it and looks on.

Read in this order: `profile`, `operations`, `work/`, `faults/`, `checkers/` (who watches), `world`,
`run`, `losses` (of lossy disks), `coverage`."""
