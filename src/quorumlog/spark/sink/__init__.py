"""`df.write.format("quorumlog")` and `df.writeStream`: rows into the log, each once.

What makes it once is in `quorumlog.staging`, which knows no Spark. Read in this order: `sink_options`,
`row_hashes` (what rows of any schema are recognised by), `row_bodies` (rows as entries), `writers` (what
Spark calls).
"""
