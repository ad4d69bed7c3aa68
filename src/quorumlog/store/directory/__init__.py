"""A member's directory as a whole.

Read in this order: `member_directory` (opening it), `foreign_files` (what is left alone),
`proven_commit` (what of its log is known to be committed), `opened_directory` (what a member does with
it), `directory_recovery` (an operator's last resort for a group of one). Then `copied_log` (entries as
another log has them), `backup_directory` and `restored_directory`.
"""
