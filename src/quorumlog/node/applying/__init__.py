"""State machines of a member: driven beside the loop, from what is committed and on its own disk.

Read in this order: `kept_results` (those of sessions, for who repeats a command), `machine_runner` (one
machine, on the thread that applies), `machine_opening` (what a start goes on from), `awaited_results`
(which append hears which result), `sliced_save` (a machine is saved, and goes on), `snapshot_keeper`
(when a machine is saved, and which of its snapshots are known to be good), `questions` (who is answered
next), `machine_driver` (one machine, on the loop), `hand_over` (leadership goes where machines run),
`step_overs` (one is to leave an entry out), `state_machine_caller` (all of them, and how the log comes
to bind them).
"""
