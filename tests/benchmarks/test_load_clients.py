"""Every load client of the benchmarks that speaks to quorumlog has its requests answered by the product
as it is; how fast is no matter here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.broker import end_to_end, loads
from benchmarks.fresh_reads import measure_fresh_reads
from benchmarks.kv.__main__ import LOADS as KV_LOADS
from benchmarks.kv.__main__ import measured
from benchmarks.peers.cache import Cache
from benchmarks.peers.quorumlog import Quorumlog
from harness.broker_cluster import BrokerCluster
from quorumlog.broker import connect as connect_broker
from quorumlog.kv.testing import LocalStores
from tests.waiting import eventually

SECONDS = 0.2
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("language", ["go", "python"])
def test_the_log_is_loaded(language: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if language == "go" and shutil.which("go") is None:
        pytest.skip("the load client in Go cannot be built: go is not installed")
    system = Quorumlog("async", python_client=language == "python")
    system.set_up(Cache(pytestconfig.cache.mkdir("load-clients")))
    with system.running(tmp_path) as running:
        for workload in system.shapes:
            found = running.measure(workload, SECONDS)
            assert found.records_per_second > 0, workload


def test_fresh_reads_are_loaded(tmp_path: Path) -> None:
    outcome = measure_fresh_reads(tmp_path, SECONDS, lambda text: None)
    assert outcome.figures["three_per_second"] > 0


def test_the_key_value_store_is_loaded() -> None:
    client = [sys.executable, "-m", "benchmarks.kv.load"]
    with LocalStores() as stores:
        for load in {load.kind: load for load in KV_LOADS}.values():
            assert measured([*client, stores.servers], load, SECONDS) > 0, load


def test_the_broker_is_loaded(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, members=1, topics=f"{end_to_end.TOPIC}:4") as cluster:
        with connect_broker(cluster.servers) as broker:
            eventually(lambda: broker.queues(end_to_end.TOPIC), what="the topic of its start")
        for load in (loads.LOADS[1], loads.LOADS[-1]):
            assert loads.ours(cluster.servers, load, 128, SECONDS) > 0, load
        assert end_to_end.in_its_own_process(cluster.servers, 100, SECONDS)
