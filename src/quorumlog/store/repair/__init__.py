"""What a start finds and mends, and what is mended while a member runs.

Read in this order: `damage_search` (a walk over a log that goes round damage), `survey_files` and
`survey` (what a log holds, without a write), `set_aside` (what is kept for people), `leftovers`,
`segment_adoption` and `recovery` (a start applies the survey), `rewriting` (damage found later, and
another member's copy written over it).
"""
