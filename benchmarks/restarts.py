"""How long a follower that was restarted idles: from listening to having all that is committed."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.outcome import Outcome, Report
from quorumlog import LocalCluster, connect
from quorumlog.bench.figures import PromisedFigure

TARGETS = (PromisedFigure("median_s", 0.05, False), PromisedFigure("worst_s", 0.2, False))
POLL_SECONDS = 0.001
LIMIT_SECONDS = 30.0


def time_restarts(count: int, report: Report) -> Outcome:
    """Of members in this process, so that what a process takes to start is not in it. The follower is
    killed, lacks one entry, and is restarted."""
    report(f"restarts: {count}")
    with LocalCluster(3) as cluster, connect(cluster.servers) as client:
        client.append(b"first")
        leader = cluster.leader()
        follower = next(member for member in cluster.running if member != leader)
        seconds = []
        for number in range(count):
            cluster.kill(follower)
            end_index = client.append(b"%d" % number).first_index
            cluster.restart(follower)
            began_s = time.perf_counter()
            node = cluster.server(follower).drivers[0].node
            while node.committed_index < end_index:
                assert time.perf_counter() - began_s < LIMIT_SECONDS, f"{follower} does not catch up"
                time.sleep(POLL_SECONDS)
            seconds.append(time.perf_counter() - began_s)
    median_s, p99_s = (float(q) for q in np.percentile(seconds, (50, 99)))
    figures = {
        "restarts": float(count),
        "median_s": median_s,
        "p99_s": p99_s,
        "worst_s": max(seconds),
    }
    return Outcome("restarts", figures, TARGETS, "restarts: of a follower that lacks one entry")
