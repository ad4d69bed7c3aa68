"""A member's directory as a whole.

Read in this order: `member_directory` (opening it), `made_again` (what a start looks at
first), `proven_commit` (what of its log is known to be committed),
`opened_directory` (what a member does with it). Then `copied_log` (entries as another log has them),
`backup_directory`, `restored_directory`, and `recovered_directory` (an operator's last resort).
"""
