"""Runs of whole clusters in virtual time, by the thousand, and what checks only ourselves.

A room for each world: `log`, `kv` (the store on it), `broker` (on it),
`replicas` (master and slaves, by hand or with a coordinator), `groups` (of consumers). What a
user simulates with is `quorumlog.testing`, on which all of them stand.
"""
