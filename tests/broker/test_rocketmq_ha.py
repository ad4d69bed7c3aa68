"""RocketMQ's own store as the slave of our master, and as the master of our slave: the same bytes.

Needs java and Maven, and RocketMQ from Maven Central: skipped elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from harness.maven import Unavailable
from harness.rocketmq.store_tool import (
    ENTRIES,
    FILE_BYTES,
    QUEUE_BYTES,
    SLOTS,
    StoreTool,
    class_path,
)
from quorumlog.broker import Message, connect
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.processes, pytest.mark.timeout(300)]

SIZES = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": QUEUE_BYTES,
    "max_hash_slot_num": SLOTS,
    "max_index_num": ENTRIES,
}
OPTIONS = [word for name, size in SIZES.items() for word in ("--option", f"{name}={size}")]


@pytest.fixture(scope="module")
def classes() -> str:
    try:
        return class_path()
    except Unavailable as reason:
        pytest.skip(f"RocketMQ is not to be had: {reason}")


def log_bytes(folder: Path, stop: int, first: int = 0) -> bytes:
    files = sorted((folder / "commitlog").glob("[0-9]*"))
    base = int(files[0].name)
    return b"".join(file.read_bytes() for file in files)[first - base : stop - base]


def test_a_java_store_is_the_slave_of_our_master(classes: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ours = BrokerProcess(
        tmp_path / "ours",
        *("--role", "sync-master", "--in-sync-replicas", "2", "--ha-dialect", "rocketmq"),
        *("--id", "a", "--ha-port", str(port), *OPTIONS),
    )
    with ours, connect(ours.address) as broker:
        with StoreTool(classes, tmp_path / "java", master=f"127.0.0.1:{port}") as java:
            # It reports once it is there, up to five seconds after its start.
            eventually(lambda: any(slave.counts for slave in broker.replica().slaves))
            for n in range(0, 300, 10):  # several files; each batch waits for the slave
                batch = range(n, n + 10)
                broker.send_batch(
                    [Message("t", b"%d " % n * (n % 60 + 1), keys=(f"k{n}",)) for n in batch], queue_id=0
                )
            end = broker.status().max_offset
            assert end > 2 * FILE_BYTES
            eventually(lambda: java("offsets") == [f"0 {end}"])
            assert len(java("get t 0")) == 300
            java.close()
        assert ours.stop() == 0
    assert log_bytes(tmp_path / "java", end) == log_bytes(tmp_path / "ours", end)


def test_our_slave_follows_a_java_master(classes: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with StoreTool(classes, tmp_path / "java") as java:
        java("put orders 0 0 100")
        ours = BrokerProcess(
            tmp_path / "ours",
            *("--role", "slave", "--master", java.ha_address, "--ha-dialect", "rocketmq"),
            *("--id", "b", "--ha-port", str(port), *OPTIONS),
            topics="orders:1",
        )
        with ours, connect(ours.address) as broker:
            _, end = map(int, java("offsets")[0].split())
            eventually(lambda: broker.status().max_offset == end)
            first = broker.status().min_offset
            assert first == end // FILE_BYTES * FILE_BYTES > 0, "a Java master sends its last file"
            java("put orders 0 100 200")
            _, end = map(int, java("offsets")[0].split())
            eventually(lambda: broker.max_offset("orders", 0) == 300)
            assert broker.status().confirm_offset == end
            low = broker.min_offset("orders", 0)
            pulled = broker.pull("orders", 0, low)
            assert [m.queue_offset for m in pulled.messages] == list(range(low, 300))
            assert broker.query("orders", "key250")[0].queue_offset == 250
            assert ours.stop() == 0
        java.close()
    assert log_bytes(tmp_path / "ours", end, first) == log_bytes(tmp_path / "java", end, first)
    with OfflineStore(str(tmp_path / "ours")) as store:
        assert store.verify()["problems"] == []
