"""The Spark sink on real processes: a streaming query copies one log into another while its driver, its
workers and the leader are killed; then what befalls checkpoints, by name.

Read in this order: `copies` (both logs, and whether they are equal), `dying` (a kill in the middle of a
commit), `copying` (the query, a process of its own), `killing` (kills at random moments), `speculating`
(two attempts of a task at once), `cases` (by name).
"""
