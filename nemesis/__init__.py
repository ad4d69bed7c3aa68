"""Real members, real faults, and a checker that believes only what clients were told.

`python -m nemesis` (or `make nemesis`) runs three or five `quorumlog serve` processes with several
client processes, and breaks things round by round: members are killed, stopped, cut off, slowed, their
disk is filled, their files are damaged. Every operation of every client is kept as a line of a history.
When all is whole and every member has stopped, the histories are held against the logs on disk.

    clients --------------------------------> members      dialled directly, never disturbed
    members ---> proxy (one port a pair) ---> members      cut, reset, delayed; one direction at a time

Read in this order: `run` (what happens), `cluster`, `faults`, `damage`, `clients`, `workers`,
`session_workers`, `workload`, `machines`, `history`, `check`, `leaders` (who led when), `report`;
`producer`, which kills one on its way through its lines (`python -m nemesis.producer`);
the room `sink`, which breaks the Spark sink (`python -m nemesis.sink`), and the room `pipelines`,
those over whole logs beside writers (`python -m nemesis.pipelines`). Of the message store:
`replicas` breaks master and slaves (`python -m nemesis.replicas`), the room `failover` those with a
coordinator (`python -m nemesis.failover`), `users` looks meanwhile who gets in at either (`--users`),
the room `brokers` breaks those on a replicated log (`python -m nemesis.brokers`). Of the key-value
store: the room `kv`, its members under clients (`python -m nemesis.kv`), the room `patroni`, Patroni
with it for its etcd (`python -m nemesis.patroni`).
"""
