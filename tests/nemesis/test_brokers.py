"""Brokers on a replicated log as real processes, whose master is killed under producers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harness.broker_cluster import BrokerCluster
from nemesis.brokers.__main__ import QUEUES, TOPIC, run, violations


def test_what_was_acknowledged_outlives_its_master(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, topics=f"{TOPIC}:{QUEUES}") as cluster:
        sent, seen, times = asyncio.run(run(cluster, rounds=1, producers=4, consumers=2))
        assert violations(cluster, sent) + seen.found == []
    assert [fault for fault, _ in times] == ["kill"]
    assert len(sent.acknowledged) > 2
