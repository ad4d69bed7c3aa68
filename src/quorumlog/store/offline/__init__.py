"""A directory that is only looked at: of a member, stopped or running, or of a Java DLedger member.

Read in this order: `log_extent` (what a look found), `stored_entries` (entries by their places),
`own_survey` and `java_survey` (either kind of directory), `missing_entries` (committed and gone),
`directory_reader` (the way in), `stored_marks` (what time it was
where), then `inspection` and `verification`.
"""
