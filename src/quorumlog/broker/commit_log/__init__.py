"""The commit log: message records one behind the other in files of equal size.

Read in this order: `file_lists`, `flushed_file`, `log_files`, `put_turn`, `commit_log`, `log_recovery`,
`clean_commit_log_service`.
"""
