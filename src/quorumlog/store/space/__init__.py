"""What a log takes of the disk and of memory, and gives back.

Read in this order: `ledger_space` (room ahead of the end), `drops` (the first segments go), `page_cache`
(memory of the operating system).
"""
