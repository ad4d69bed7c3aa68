"""A classic store made of a member's messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from quorumlog import LocalCluster
from quorumlog import connect as connect_log
from quorumlog.broker import Message, connect
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.message import StoredMessage
from quorumlog.broker.offline.offline_ledger import OfflineLedger, convert_to_classic
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.config import StoreConfig
from quorumlog.errors import ConfigError
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import load_member, save_member
from tests.unpacking import unpack
from tests.waiting import eventually

JAVA = Path(__file__).parents[2] / "fixtures" / "dledger-java" / "single"

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=16_384,
    mapped_file_size_consume_queue=1_200,
    max_hash_slot_num=100,
    max_index_num=400,
)


def _stays(message: StoredMessage) -> tuple[object, ...]:
    return message._replace(physical_offset=0, message_id="")


def test_a_members_messages_become_a_classic_store(tmp_path: Path) -> None:
    with LocalBrokers(1, topics={"orders": 2, "audit": 1}, directory=tmp_path / "log") as brokers:
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with connect(brokers.servers) as client:
            for number in range(0, 120, 4):
                bodies = [b"%d " % n * (n % 60 + 1) for n in range(number, number + 4)]
                topic, queue_id = [("orders", 0), ("orders", 1), ("audit", 0)][number // 4 % 3]
                messages = [Message(topic, body, keys=[f"k{number}"], tags="t") for body in bodies]
                client.send_batch(messages, queue_id=queue_id)
            queues = [("orders", 0), ("orders", 1), ("audit", 0)]
            eventually(lambda: sum(queue.max_offset for queue in client.queues()) == 120)
            before = {at: client.pull(*at, 0).messages for at in queues}
        member = brokers.cluster.data_dir("n0")
        with pytest.raises(ConfigError, match="in use"):
            OfflineLedger(str(member))
        brokers.cluster.stop("n0")
        with OfflineLedger(str(member)) as ledger:
            found = ledger.summary()
            assert (found["messages"], found["written_by"]) == (120, "quorumlog")
        made = convert_to_classic(str(member), str(tmp_path / "classic"), CONFIG)
    assert (made.messages, made.left_out) == (120, 0)
    with pytest.raises(ConfigError, match="not empty"):
        convert_to_classic(str(member), str(tmp_path / "classic"), CONFIG)
    store = MessageStore(str(tmp_path / "classic"), CONFIG)
    for (topic, queue_id), messages in before.items():
        pulled = store.reader.pull(QueueKey(topic, queue_id), 0).records.messages()
        assert [_stays(each) for each in pulled] == [_stays(each) for each in messages]
    assert len(store.reader.query("orders", "k0")) == 4
    store.close()
    with OfflineStore(str(tmp_path / "classic")) as stopped:
        assert stopped.verify()["problems"] == []


def test_queues_go_on_whose_messages_the_log_has_no_more(tmp_path: Path) -> None:
    storage = StoreConfig(
        segment_bytes=1 << 16, retention_bytes=100_000, snapshot_log_bytes=60_000, delete_when=""
    )
    with LocalBrokers(
        1, topics={"busy": 1, "rare": 1}, directory=tmp_path / "log", storage=storage
    ) as brokers:
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with connect(brokers.servers) as client:
            client.send_batch([Message("rare", b"rare")] * 5)
            for _ in range(6):
                client.send_batch([Message("busy", bytes(900))] * 50)
            eventually(lambda: client.min_offset("rare", 0) == 5)
        brokers.cluster.stop("n0")
        convert_to_classic(str(brokers.cluster.data_dir("n0")), str(tmp_path / "classic"), CONFIG)
    with OfflineStore(str(tmp_path / "classic")) as stopped:
        assert stopped.verify()["problems"] == []
        queues = {key.topic: queue for key, queue in stopped.queues.items()}
        assert (queues["rare"].min_offset, queues["rare"].max_offset) == (5, 5)
        assert 0 < queues["busy"].min_offset < queues["busy"].max_offset == 300


def test_what_is_no_log_of_messages_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with LocalCluster(1, directory=tmp_path / "plain") as cluster, connect_log(cluster.servers) as log:
        log.append_batch([b"no message"] * 5)
    member, target = tmp_path / "plain" / "n0", tmp_path / "classic"
    with pytest.raises(ConfigError, match="name another directory, or use quorumlog serve"):
        convert_to_classic(str(member), str(target), CONFIG)
    assert not target.exists()
    # As an earlier release has made it, which does not say whose it is.
    record = load_member(OsDisk(), str(member))
    assert record is not None
    save_member(OsDisk(), str(member), replace(record, kind=""))
    with pytest.raises(
        ConfigError, match=r"none of its [0-9]+ committed entries is one; name the directory of"
    ):
        convert_to_classic(str(member), str(target), CONFIG)
    assert not target.exists()


def test_entries_of_a_java_log_that_are_no_messages_make_no_store(tmp_path: Path) -> None:
    """Many are as long as a message."""
    unpack(JAVA / "single.tar.xz", tmp_path)
    member, target = tmp_path / "dledger-n0", tmp_path / "classic"
    with OfflineLedger(str(member)) as ledger:
        assert list(ledger.batches()) == []
    with pytest.raises(ConfigError, match="none of its 500 committed entries is one"):
        convert_to_classic(str(member), str(target), CONFIG)
    assert not target.exists()


def test_the_config_of_a_java_broker_in_dledger_mode_comes_with_its_messages(tmp_path: Path) -> None:
    with LocalBrokers(1, topics={"orders": 1}, directory=tmp_path / "log") as brokers:
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with connect(brokers.servers) as client:
            client.send(Message("orders", b"one"))
            eventually(lambda: client.max_offset("orders", 0) == 1)
        brokers.cluster.stop("n0")
        root = tmp_path / "java"
        for name in ("data", "index"):
            shutil.copytree(tmp_path / "log" / "n0" / name, root / "dledger-n0" / name)
        index = (tmp_path / "log" / "n0" / "checkpoint").read_bytes()
    (root / "dledger-n0" / "checkpoint").write_bytes(index)
    (root / "config" / "rocksdb").mkdir(parents=True)
    for name in ("delayOffset.json", "topics.json.bak", "timercheck"):
        (root / "config" / name).write_text(name)
    (root / "commitlog").mkdir()
    (root / "commitlog" / f"{0:020d}").write_bytes(bytes(100))
    with pytest.raises(ConfigError, match="from before the broker was in DLedger mode"):
        convert_to_classic(str(root), str(tmp_path / "classic"), CONFIG)
    assert not (tmp_path / "classic").exists()
    (root / "commitlog" / f"{0:020d}").unlink()
    assert convert_to_classic(str(root), str(tmp_path / "classic"), CONFIG).messages == 1
    copied = {path.name: path.read_text() for path in (tmp_path / "classic" / "config").iterdir()}
    assert copied == {name: name for name in ("delayOffset.json", "topics.json.bak", "timercheck")}
