"""A classic store that becomes the beginning of a replicated log."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from quorumlog.broker import Message, connect
from quorumlog.broker.dledger.local_brokers import LocalBrokers
from quorumlog.broker.message_store import MessageStore
from quorumlog.broker.messages.message import PutResult
from quorumlog.broker.messages.record import encode_records
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.old_log import first_difference
from quorumlog.broker.takeover import take_over
from quorumlog.config import MemberAddress, StoreConfig
from quorumlog.errors import ConfigError
from tests.broker.store.test_golden import CONFIG
from tests.waiting import eventually

MEMBERS = [MemberAddress("n0", "127.0.0.1", 20911)]
QUEUE = QueueKey("orders", 0)
STORAGE = StoreConfig(segment_bytes=CONFIG.mapped_file_size_commit_log, retention="off")


def _put(store: MessageStore, first: int, stop: int) -> None:
    messages = [Message("orders", b"%d " % n * (n % 60 + 1), keys=[f"k{n}"]) for n in range(first, stop)]
    records = RecordBatch.contiguous(*encode_records(messages, 0, 1_700_000_000_000))
    assert isinstance(store.commit_log.put_and_wait(records), PutResult)


def test_a_classic_store_is_taken_over_and_read_through_the_seam(tmp_path: Path) -> None:
    store = MessageStore(str(tmp_path / "store"), CONFIG)
    store.start()
    for first in range(0, 200, 5):
        _put(store, first, first + 5)
    with pytest.raises(ConfigError, match="in use"):
        take_over(str(tmp_path / "store"), str(tmp_path / "log" / "n0"), "n0", MEMBERS)
    store.close()
    for copy in ("n1", "n2"):
        shutil.copytree(tmp_path / "store", tmp_path / copy)
    with LocalBrokers(
        topics={"orders": 1}, directory=tmp_path / "log", storage=STORAGE, staging=False, starts=False
    ) as brokers:
        made = [
            take_over(
                str(tmp_path / of), str(tmp_path / "log" / member), member, brokers.cluster.members
            )
            for member, of in (("n0", "store"), ("n1", "n1"), ("n2", "n2"))
        ]
        assert made[0] == made[1] == made[2]
        assert made[0].end_position % made[0].file_bytes == 0
        brokers.start()
        with connect(brokers.servers) as client:
            behind = client.send(Message("orders", b"behind the seam", keys=["new"]), queue_id=0)
            assert behind.queue_offset == 200
            assert behind.physical_offset > made[0].end_position
            eventually(lambda: client.max_offset("orders", 0) == 201)
            messages = client.pull("orders", 0, 190).messages
            assert [m.queue_offset for m in messages] == list(range(190, 201))
            assert messages[-1].body == b"behind the seam"
            (old,) = client.query("orders", "k7")
            assert old == client.message(old.message_id)
            assert client.status().min_offset == 0


def test_old_logs_that_differ_are_told_apart(tmp_path: Path) -> None:
    records = []
    for name, last in (("a", 50), ("b", 51)):
        store = MessageStore(str(tmp_path / name), CONFIG)
        _put(store, 0, last)
        store.close()
        made = take_over(str(tmp_path / name), str(tmp_path / f"m{name}"), "n0", MEMBERS)
        records.append(made)
    assert first_difference(records[0], records[0]) == ""
    assert "they differ in the" in first_difference(*records)
    assert msgspec.json.decode((tmp_path / "ma" / "taken-over").read_bytes())["file_bytes"] == 16_384
