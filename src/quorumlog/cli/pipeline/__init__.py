"""quorumlog pipeline: what is done with a whole log.

Read in this order: `choices` (options that they share), `over_entries` (stats,
replay, compact), `commands`.
"""
