"""quorumlog broker topic, group and consume: what only a broker on a replicated log has.

Read in this order: `topics`, `groups`, `consume`.
"""
