"""What enters a member's log, and when it is on disk.

Read in this order: `push_checks` (what a push must be), `memberships` (those of the log and of the
core), `log_state_reading` (what control entries lead to, as a start finds it in the log),
`border_saver` (states at borders are saved), `log_state_keeper` (the state from then on), `log_writer`
(pushes and proposals are written, conflicts are cut), `flusher` (syncs, and what waits for them),
`append_conditions` (who is let in only behind a certain entry), `log_clock` (how far clocks are
believed), `time_marks` (what time it is), `operator_orders` (it begins anew, an upgrade ends),
`producer_sessions` (what stands in the log once, however often it is sent), `batch_former` (appends
become batches).
"""
