"""RocketMQ's own DefaultMessageStore on directories that we wrote, and the other way round.

Needs java and Maven, and RocketMQ from Maven Central: skipped elsewhere.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.maven import Unavailable
from harness.rocketmq.store_tool import StoreTool, class_path
from quorumlog.broker.message import Message, PutMessageResult, crc_of, encode_records
from quorumlog.broker.offline.offline_ledger import OfflineLedger, convert_to_classic
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.cli.main import app
from quorumlog.spark.messages.message_options import MessageOptions
from quorumlog.spark.messages.message_sources import source_of
from tests.broker.store.store_making import put_and_wait
from tests.broker.store.test_golden import CONFIG, derived
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(300)]

TOPIC = "ours"


@pytest.fixture(scope="module")
def classes() -> str:
    try:
        return class_path()
    except Unavailable as reason:
        pytest.skip(f"RocketMQ is not to be had: {reason}")


def fill(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count, 3):
        numbers = range(number, min(number + 3, first + count))
        messages = [
            Message(TOPIC, b"%d " % n * (n % 90 + 1), tags=f"T{n % 4}", keys=(f"k{n}", f"k{n}b"))
            for n in numbers
        ]
        keys = [f"{n:032X}" for n in numbers]
        records = RecordBatch.contiguous(*encode_records(messages, 0, 1_700_000_000_000, keys))
        assert isinstance(put_and_wait(store, records), PutMessageResult)


def settled(store: MessageStore) -> None:
    while store.reput.behind_bytes:
        store.flush_once()


def crcs_of(folder: Path) -> Iterator[str]:
    with OfflineStore(str(folder)) as store:
        for records in store.batches():
            for m in records.messages():
                if m.topic == TOPIC:
                    yield f"{m.queue_offset} {m.physical_offset} {crc_of(m.body)} {m.tags}"


@pytest.mark.parametrize("killed", [False, True], ids=["clean stop", "abort present"])
def test_java_goes_on_with_what_we_wrote_and_we_with_what_java_wrote(
    classes: str, tmp_path: Path, killed: bool
) -> None:
    folder = tmp_path / "store"
    store = MessageStore(str(folder), CONFIG)
    store.start()
    fill(store, 0, 200)
    if killed:
        # As SIGKILL leaves it: nothing is flushed on the way out, and `abort` stays. What runs on would
        # write while this copies.
        for thread in store._threads:
            thread.stop()
        killed_copy = tmp_path / "killed"
        shutil.copytree(folder, killed_copy)
        store.close()
        folder = killed_copy
        assert (folder / "abort").exists()
    else:
        store.close()
    expected = list(crcs_of(folder))
    assert len(expected) == 200

    with StoreTool(classes, folder) as java:
        assert java.loaded
        lines = [line.removeprefix("message ") for line in java(f"get {TOPIC} 0")]
        assert [line.rsplit(" ", 2)[0] for line in lines] == expected
        for number in (0, 77, 199):
            assert java(f"query {TOPIC} k{number}") == ["found 1"]
            assert java(f"query {TOPIC} {number:032X}") == ["found 1"]
        assert java(f"put {TOPIC} 0 1000 1000") == []
        if killed:
            java("settle")
            java.halt()
        else:
            java.close()

    store = MessageStore(str(folder), CONFIG)
    assert store.was_clean is not killed
    queue = store.queues.get(QueueKey(TOPIC, 0))
    assert queue is not None
    assert queue.max_offset == 1200
    store.start()
    fill(store, 200, 50)
    settled(store)
    assert len(store.reader.query(TOPIC, "key1999")) == 1
    store.close()
    with OfflineStore(str(folder)) as stopped:
        assert stopped.verify()["problems"] == []
    assert len(list(crcs_of(folder))) == 1250

    # Both derive queues anew, and the bytes agree.
    ours, theirs = tmp_path / "anew-ours", tmp_path / "anew-theirs"
    for copy in (ours, theirs):
        shutil.copytree(folder, copy)
        shutil.rmtree(copy / "consumequeue")
        shutil.rmtree(copy / "index")
    MessageStore(str(ours), CONFIG).close()
    with StoreTool(classes, theirs) as java:
        java("settle")
        java.close()
    queues = {name: data for name, data in derived(ours).items() if name.startswith("consumequeue/")}
    java_queues = {n: data for n, data in derived(theirs).items() if n.startswith("consumequeue/")}
    assert {n: d for n, d in queues.items() if d.strip(b"\0")} == {
        n: d for n, d in java_queues.items() if d.strip(b"\0")
    }


def test_a_java_brokers_replicated_log_is_read_and_becomes_a_classic_store_for_java(
    classes: str, tmp_path: Path
) -> None:
    folder, classic = tmp_path / "dledger", tmp_path / "classic"
    with StoreTool(classes, folder, dledger=True) as java:
        assert java.loaded
        # It takes nothing until it has elected itself.
        eventually(lambda: java(f"put {TOPIC} 0 0 1") == [])
        assert java(f"put {TOPIC} 0 1 299") == []
        java("settle")
        java.close()
    with OfflineLedger(str(folder)) as ledger:
        found = ledger.summary()
        assert (found["written_by"], found["messages"]) == ("java", 300)
        before = [m for records in ledger.batches() for m in records.messages()]
        assert [m.queue_offset for m in before] == list(range(300))
    shown = CliRunner().invoke(app, ["broker", "inspect", str(folder), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["messages"] == 300
    source = source_of(MessageOptions.parse({"view": "messages", "path": str(folder), "topic": TOPIC}))
    viewed = [m for part in source.partitions() for batch in source.read(part) for m in batch.messages()]
    assert viewed == before
    made = convert_to_classic(str(folder), str(classic), CONFIG)
    assert (made.messages, made.left_out) == (300, 0)
    with OfflineStore(str(classic)) as store:
        assert store.verify()["problems"] == []
    expected = list(crcs_of(classic))
    assert [line.split()[2] for line in expected] == [str(crc_of(m.body)) for m in before]
    with StoreTool(classes, classic) as java:
        assert java.loaded
        lines = [line.removeprefix("message ") for line in java(f"get {TOPIC} 0")]
        assert [line.rsplit(" ", 2)[0] for line in lines] == expected
