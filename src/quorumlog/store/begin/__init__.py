"""Where the log begins once its first entries are gone.

Read in this order: `borders` (where each segment begins, and the states that are saved there), `drops`
(the first segments go), `marked_log` (what time it was where).
"""
