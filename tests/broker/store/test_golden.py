"""What RocketMQ 5.3.3 wrote (harness/rocketmq/store_tool.py made it), read and written identically."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from quorumlog.broker.config import SYNC_FLUSH, MessageStoreConfig
from quorumlog.broker.message import Message, StoredMessage, encode_records
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import PutRequest
from quorumlog.broker.store.message_store import MessageStore
from tests.broker.store.store_making import put_and_wait

GOLDEN = Path(__file__).parents[2] / "fixtures" / "rocketmq-store"
CONFIG = MessageStoreConfig(
    flush_disk_type=SYNC_FLUSH,
    mapped_file_size_commit_log=16_384,
    mapped_file_size_consume_queue=1_200,
    max_hash_slot_num=100,
    max_index_num=400,
)
TIME_OF_INDEX = 1_795_455_961_563


def expected_body(number: int, topic: str) -> bytes:
    return f"body {number} of {topic} {'x' * (number % 200)}".encode()


def files_below(folder: Path) -> dict[str, bytes]:
    """By path; an index file by the folder, since its name is when it was made."""
    names = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            names["index" if name.startswith("index/") else name] = path.read_bytes()
    return names


def derived(folder: Path) -> dict[str, bytes]:
    kept = ("commitlog/", "consumequeue/", "index")
    return {name: data for name, data in files_below(folder).items() if name.startswith(kept)}


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "store"))


def all_messages(folder: Path) -> list[StoredMessage]:
    with OfflineStore(str(folder)) as store:
        return [message for records in store.batches() for message in records.messages()]


def test_every_field_of_a_record_is_read_as_java_wrote_it() -> None:
    messages = all_messages(GOLDEN)
    assert len(messages) == 130
    for number, message in enumerate(messages):
        topic, queue = ("golden", 0) if number < 60 else ("golden", 1) if number < 100 else ("other", 0)
        first = {("golden", 0): 0, ("golden", 1): 60, ("other", 0): 100}[topic, queue]
        assert message.topic == topic
        assert message.queue_id == queue
        assert message.queue_offset == number - first
        assert message.body == expected_body(number, topic)
        assert message.tags == f"tag{number % 3}"
        assert message.keys == (f"key{number}", f"tenth{number // 10}")
        assert message.properties["number"] == str(number)
        assert message.properties["UNIQ_KEY"] == f"{number:032X}"
        assert message.flag == number
        assert message.born_time_ms == 1_700_000_000_000 + number
        assert message.born_host == "127.0.0.1:54321"
        assert message.store_host == "127.0.0.1:10911"
        assert message.message_id == f"7F00000100002A9F{message.physical_offset:016X}"


def test_a_store_of_java_verifies() -> None:
    with OfflineStore(str(GOLDEN)) as store:
        report = store.verify()
        summary = store.summary()
    assert report["problems"] == []
    assert report["messages"] == report["queue_units"] == 130
    assert report["keys"] == 130 * 3
    assert summary["clean"]
    assert summary["checkpoint"]["physicMsgTimestamp"] > 1_700_000_000_000


@pytest.mark.parametrize("lost", ["consumequeue", "index"])
def test_queues_and_index_that_are_lost_come_back_byte_for_byte(golden: Path, lost: str) -> None:
    shutil.rmtree(golden / lost)
    store = MessageStore(str(golden), CONFIG)
    assert [m.body for m in store.reader.query("golden", "key77").messages()] == [
        expected_body(77, "golden")
    ]
    store.close()
    assert derived(golden) == derived(GOLDEN)


def test_the_same_messages_put_here_make_the_same_files(tmp_path: Path) -> None:
    """Records as they were before Java's store filled in what only it knows, at the same times."""
    folder = tmp_path / "store"
    with OfflineStore(str(GOLDEN)) as golden:
        raw = [
            bytes(b.buffer[s : s + n])
            for b in golden.batches()
            for s, n in zip(b.starts, b.sizes, strict=True)
        ]
    times = [message.store_time_ms for message in all_messages(GOLDEN)]
    clock = iter([*times, *[times[-1]] * 1000])
    now = [float(times[0])]
    store = MessageStore(str(folder), CONFIG, wall_clock=lambda: now[0])
    store.commit_log.store_host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
    for data in raw:
        now[0] = next(clock)
        blank = bytearray(data)
        blank[20:36] = bytes(16)
        blank[56:72] = bytes(16)
        answers: list[object] = []
        records = RecordBatch.contiguous(blank, [len(blank)])
        store.commit_log.put([PutRequest(records, True, answers.append)])
        store.flush_once()
        store.reput_once()
        assert answers
    store.close()
    ours, theirs = derived(folder), derived(GOLDEN)
    # Ahead of the log a file more may have been made.
    assert {name: ours[name] for name in theirs} == theirs
    assert all(not data.strip(b"\0") for name, data in ours.items() if name not in theirs)
    # Java's checkpoint may be a flush behind its log, and knows of the index when a file is full.
    last = times[-1]
    ours_checkpoint = (folder / "checkpoint").read_bytes()
    assert np.frombuffer(ours_checkpoint[:40], ">i8").tolist() == [last, last, last, 0, 0]
    theirs_checkpoint = (GOLDEN / "checkpoint").read_bytes()
    assert len(ours_checkpoint) == len(theirs_checkpoint) == 4096
    assert np.frombuffer(theirs_checkpoint[8:16], ">i8").tolist() == [last]


def test_what_we_encode_has_java_s_fields() -> None:
    (message,) = all_messages(GOLDEN)[77:78]
    sent = Message(
        "golden",
        message.body,
        tags=message.tags,
        keys=message.keys,
        properties={"number": "77"},
        flag=77,
    )
    buffer, sizes = encode_records([sent], 1, message.born_time_ms, [f"{77:032X}"])
    assert sizes == [message.size_bytes]
    (ours,) = RecordBatch.contiguous(buffer, sizes).messages()
    same = (
        "topic",
        "queue_id",
        "body",
        "tags",
        "keys",
        "properties",
        "born_time_ms",
        "flag",
        "sys_flag",
    )
    assert [getattr(ours, name) for name in same] == [getattr(message, name) for name in same]


def test_java_s_store_is_gone_on_with(golden: Path) -> None:
    store = MessageStore(str(golden), CONFIG)
    store.start()
    for number in range(130, 200):
        records = RecordBatch.contiguous(
            *encode_records([Message("golden", expected_body(number, "golden"))], 0, 0)
        )
        put_and_wait(store, records)
    store.close()
    with OfflineStore(str(golden)) as stopped:
        report = stopped.verify()
        assert stopped.queues.get(QueueKey("golden", 0)).max_offset == 130  # type: ignore[union-attr]
    assert report["problems"] == []
    assert report["messages"] == 200
