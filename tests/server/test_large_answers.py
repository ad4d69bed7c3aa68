"""More than a connection's write buffer is asked for at once."""

from __future__ import annotations

from quorumlog import LocalCluster, connect


def test_large_answers_that_were_asked_for_at_once_all_come() -> None:
    """The kernel takes an answer of 8 MiB in one write or in several, as it likes."""
    bodies = [b"x" * (512 << 10)] * 8
    with LocalCluster(members=1, store="memory") as cluster, connect(cluster.servers) as log:
        for _ in range(8):
            log.append_batch(bodies)
        batches = list(log.read_batches(1, 65, batch_bytes=8 << 20, prefetch=4))
        assert sum(batch.count for batch in batches) == 64
