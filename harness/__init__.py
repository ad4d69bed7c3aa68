"""What `demo`, `benchmarks` and `nemesis` stand on: real members, and what is done to them.

Read in this order: `member_processes` (`quorumlog serve` as processes), `proxy` (a network between them
that can be cut), `machines` (state machines that they run), `producer` (appends without end), `faults`
(a leader lost, and timed), `encryption` (TLS for all of them), `earlier` (the release before),
`directories` (what the stopped members hold), `broker_process` (`quorumlog broker serve`),
`broker_cluster` (three of them on a replicated log), `etcd_cluster`, the room `etcd` (real etcds and
ours, asked alike), the room `kafka` (Kafka's broker and clients), `maven` (jars), the room
`rocketmq` (RocketMQ's Java classes), the room `zookeeper` (a server of it), the room `porcupine` (our
checker of histories beside another), `spark_cluster` (a master and workers of Spark),
`halted_pipelines` (a driver of its own on them), `object_store` (an S3 whose way is bad), `page` (that
for operators, in a browser), `alerts` (each by its cause), `signals`, `plot`;
and `blocking_clients`, which writes the blocking clients from those for asyncio.
"""
