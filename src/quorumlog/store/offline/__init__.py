"""A directory that is only looked at: of a member, stopped or running, or of a Java DLedger member.

Read in this order: `log_extent` (what a look found), `small_files` (what cannot be read of them),
`stored_entries` (entries by their places), `own_survey` and `java_survey` (either kind of directory),
`missing_entries` (committed and gone), `log_begin` (the start, and states at borders),
`directory_reader` (the way in), `stored_marks` (what time it was where), then `inspection` and
`verification`.
"""
