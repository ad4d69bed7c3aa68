"""What a member keeps beside its log, each in a file of its own that survives a crash at any step.

Read in this order: `slot_file` (a value in two slots), with `hard_state_file` (term and vote),
`durable_file` (what is on disk) and `start_file` (where the log begins); `replaced_file` (a text that
is replaced whole), with `member_file` (who this is), `checkpoint_file` (what was committed),
`state_files` (the state of the log at borders), `damaged_ranges` (which entries are damaged),
`backup_file` (of a directory that is a backup);
`snapshot_file` (the state of a state machine, of whatever size), `received_snapshot` (one of another
member, until it is whole) and `applying_file` (what a machine was about to apply).
"""
