"""The first start on a store that another software wrote: what does not fit is refused by file, and
nothing is touched."""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import pytest

from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.dledger.message_machine import MessageMachine, QueueEndsAnswer
from quorumlog.broker.message import Message, PutMessageResult, encode_records
from quorumlog.broker.offline.offline_store import (
    OfflineStore,
    allow_cut,
    hide_given_again,
)
from quorumlog.broker.offline.old_log import OldLog
from quorumlog.broker.offline.takeover import take_over
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.store.queues import ConsumeQueues
from quorumlog.config import MemberAddress
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.disk import OsDisk
from tests.broker.store import test_golden
from tests.broker.store.store_making import put_and_wait

CONFIG = replace(test_golden.CONFIG, flush_disk_type=ASYNC_FLUSH)
FILE_BYTES = CONFIG.mapped_file_size_commit_log
QUEUES = 3
MESSAGES = 300


def put(store: MessageStore, number: int) -> PutMessageResult:
    records = RecordBatch.contiguous(
        *encode_records(
            [Message("plain", b"%d " % number * 60, keys=(f"k{number}",))], number % QUEUES, 0
        )
    )
    result = put_and_wait(store, records)
    assert isinstance(result, PutMessageResult)
    return result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_java_store(tmp_path / "store")
    return tmp_path / "store"


def make_java_store(root: Path) -> None:
    """As a Java broker leaves it: without the files that are ours."""
    store = MessageStore(str(root), CONFIG)
    for number in range(MESSAGES):
        put(store, number)
    store.close()
    as_of_java(root)
    files_of(root)[-1].unlink()  # made ahead, and empty
    assert len(files_of(root)) > 4


def as_of_java(root: Path) -> None:
    for name in ("flushed", "queues"):
        (root / name).unlink()


def files_of(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def content_of(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() if each.is_file() else b"" for each in sorted(path.rglob("*"))}


def cut_last(root: Path) -> None:
    with files_of(root)[-1].open("r+b") as file:
        file.truncate(FILE_BYTES - 500)


def lengthen_last(root: Path) -> None:
    with files_of(root)[-1].open("r+b") as file:
        file.truncate(FILE_BYTES + 4096)


def cut_first(root: Path) -> None:
    with files_of(root)[0].open("r+b") as file:
        file.truncate(FILE_BYTES - 1)


def without_last(root: Path) -> None:
    files_of(root)[-1].unlink()


def without_last_and_queues(root: Path) -> None:
    without_last(root)
    shutil.rmtree(root / "consumequeue")


def without_middle(root: Path) -> None:
    files_of(root)[2].unlink()


def without_shape(root: Path) -> None:
    """Of a record in the middle."""
    with files_of(root)[2].open("r+b") as file:
        file.write(b"\xff\xff")


def with_rocks(root: Path) -> None:
    for name in ("CURRENT", "000004.log"):
        (root / "consumequeue" / name).write_bytes(b"MANIFEST-000005\n")


def with_batches(root: Path) -> None:
    (root / "batchconsumequeue" / "batched" / "0").mkdir(parents=True)


def with_light_queues(root: Path) -> None:
    (root / "consumequeue" / "%LMQ%a" / "0").mkdir(parents=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cut_last, "has 15884 bytes where files have 16384"),
        (lengthen_last, "has 20480 bytes where files have 16384"),
        (cut_first, "00000000000000000000 has 16383 bytes where files have 16384"),
        (without_last, "and consumequeue/plain/. names messages up to .*lie on another path"),
        (without_last_and_queues, "and the checkpoint names one of .*lie on another path"),
        (without_middle, "00000000000000032768 is missing between others.*storePathCommitLog"),
        (without_shape, "the record at 32768 is no record, and consumequeue/plain/. names"),
        (with_rocks, r"consumequeue holds queues in RocksDB \(storeType=defaultRocksDB\)"),
        (with_batches, "batchconsumequeue/batched is a topic with queue.type=BatchCQ"),
        (with_light_queues, r"consumequeue/%LMQ%a is a light message queue"),
    ],
)
def test_a_store_of_another_software_that_does_not_fit_is_refused_and_left_as_it_is(
    root: Path, tmp_path: Path, change: Callable[[Path], None], says: str
) -> None:
    change(root)
    before = content_of(root)
    with pytest.raises((ConfigError, StoreFailure), match=says):
        MessageStore(str(root), CONFIG)
    assert content_of(root) == before
    members = [MemberAddress("n0", "127.0.0.1", 1)]
    with pytest.raises(
        (ConfigError, StoreFailure), match="recover the store first" if change is without_shape else says
    ):
        take_over(str(root), str(tmp_path / "made"), "n0", members)
    assert content_of(root) == before


def test_what_is_missing_at_the_end_may_be_given_up(root: Path) -> None:
    without_last(root)
    with OfflineStore(str(root)) as stopped:
        assert "lie on another path" in stopped.verify()["problems"][0]
    end = FILE_BYTES * len(files_of(root))
    assert allow_cut(str(root), end) == 0
    store = MessageStore(str(root), CONFIG)
    held = sum(queue.max_offset for queue in store.queues.all)
    assert 0 < held < MESSAGES
    assert put(store, 0).physical_offset >= end
    store.close()
    with OfflineStore(str(root)) as stopped:
        assert stopped.verify()["problems"] == []


@pytest.mark.parametrize("part", ["plain/1", "plain", "plain/1/00000000000000000000"])
def test_a_queue_that_a_cleanly_stopped_store_has_lost_is_derived_anew(root: Path, part: str) -> None:
    """It lies in no later file than the log's last, so nothing but the whole walk finds it."""
    path = root / "consumequeue" / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = MessageStore(str(root), CONFIG)
    held = [(key.queue_id, queue.min_offset, queue.max_offset) for key, queue in store.queues.items()]
    assert held == [(n, 0, MESSAGES // QUEUES) for n in range(QUEUES)]
    assert len(store.reader.query("plain", "k7")) == 1
    assert put(store, 1).queue_offset == MESSAGES // QUEUES
    store.close()


def test_a_log_that_a_loss_of_power_has_torn_in_its_last_file_is_no_reason_to_refuse(root: Path) -> None:
    (root / "abort").touch()
    with files_of(root)[-1].open("r+b") as file:
        file.seek(600)
        file.write(bytes(FILE_BYTES - 600))
    checkpoint = bytearray((root / "checkpoint").read_bytes())
    checkpoint[:16] = struct.pack(">qq", 1, 1)  # nothing is known to be on disk
    (root / "checkpoint").write_bytes(checkpoint)
    store = MessageStore(str(root), CONFIG)
    assert store.commit_log.max_offset < int(files_of(root)[-1].name) + 700
    assert sum(queue.max_offset for queue in store.queues.all) < MESSAGES
    store.close()


def test_the_next_file_of_a_broker_that_was_killed_has_no_length_yet(root: Path) -> None:
    (root / "abort").touch()
    (root / "commitlog" / f"{FILE_BYTES * len(files_of(root)):020d}").touch()
    store = MessageStore(str(root), CONFIG)
    assert sum(queue.max_offset for queue in store.queues.all) == MESSAGES
    store.close()


def test_a_disk_that_is_mounted_at_the_commit_log_keeps_what_is_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "commitlog" / "lost+found").mkdir()
    (root / "commitlog" / ".stray").write_bytes(b"x")
    (root / "consumequeue" / "lost+found").mkdir()
    rename = OsDisk.rename

    def over_disks(disk: OsDisk, old: str, new: str) -> None:
        if "/commitlog/" in old:
            raise OSError(errno.EXDEV, "Invalid cross-device link", old)
        rename(disk, old, new)

    monkeypatch.setattr(OsDisk, "rename", over_disks)
    for _ in range(2):
        store = MessageStore(str(root), CONFIG)
        assert sum(queue.max_offset for queue in store.queues.all) == MESSAGES
        assert store.queues.get(QueueKey("lost+found", 0)) is None
        store.close()
    assert (root / "commitlog" / "lost+found").is_dir()
    assert (root / "commitlog" / ".stray").exists()


def test_the_commit_log_may_lie_elsewhere_by_a_link_but_not_nowhere(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "elsewhere")
    (root / "commitlog").symlink_to(tmp_path / "elsewhere")
    store = MessageStore(str(root), CONFIG)
    assert sum(queue.max_offset for queue in store.queues.all) == MESSAGES
    store.close()
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match="commitlog is no directory, or a symbolic link to none"):
        MessageStore(str(root), CONFIG)


def test_a_file_of_another_size_in_a_store_of_ours_is_refused(root: Path) -> None:
    MessageStore(str(root), CONFIG).close()
    lengthen_last(root)
    with pytest.raises(ConfigError, match="has 20480 bytes where files have 16384"):
        MessageStore(str(root), CONFIG)


# -------------------------------------------------------------------- what a healthy store may hold


def put_into(store: MessageStore, topic: str) -> int:
    records = RecordBatch.contiguous(*encode_records([Message(topic, b"x" * 100)], 0, 0))
    result = put_and_wait(store, records)
    assert isinstance(result, PutMessageResult)
    return result.queue_offset


def ranges_of(store: MessageStore) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (key.topic, key.queue_id): (queue.min_offset, queue.max_offset)
        for key, queue in store.queues.items()
    }


def make_again(store: MessageStore, root: Path, key: QueueKey) -> None:
    """As a Java broker deletes a topic: its queues go, and its messages in the log stay."""
    store.reput_once()
    store.flush_queues(thorough=True)
    store.queues._queues.pop(key).close()
    shutil.rmtree(root / "consumequeue" / key.topic)
    store.commit_log.next_queue_offsets.pop(key)


@pytest.mark.parametrize("between", [0, 200])
def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path, between: int) -> None:
    root = tmp_path / "store"
    store = MessageStore(str(root), CONFIG)
    for number in range(100):
        put(store, number)
    again = QueueKey("again", 0)
    for _ in range(10):
        put_into(store, "again")
    for number in range(between):
        put(store, number)
    make_again(store, root, again)
    assert [put_into(store, "again") for _ in range(4)] == [0, 1, 2, 3]
    store.reput_once()
    queue = store.queues.get(again)
    assert queue is not None
    positions = queue.units(0, 4)["position"].tolist()
    store.close()
    as_of_java(root)
    with OfflineStore(str(root)) as stopped:
        assert stopped.verify()["problems"] == []
    for is_deleted in (False, False, True, False):
        if is_deleted:
            shutil.rmtree(root / "consumequeue")
        store = MessageStore(str(root), CONFIG)
        assert ranges_of(store)["again", 0] == (0, 4)
        queue = store.queues.get(again)
        assert queue is not None
        assert queue.units(0, 4)["position"].tolist() == positions
        store.close()
    with OfflineStore(str(root)) as stopped:
        assert stopped.verify()["problems"] == []
    store = MessageStore(str(root), CONFIG)
    assert put_into(store, "again") == 4
    store.close()


@pytest.mark.parametrize("is_expired", [False, True])
def test_numbers_that_were_given_again_are_shown_once_that_is_asked_for(
    tmp_path: Path, is_expired: bool
) -> None:
    """By a slave of an earlier release, which did not know where a queue ended."""
    root = tmp_path / "store"
    store = MessageStore(str(root), CONFIG)
    again = QueueKey("again", 0)
    for _ in range(0 if is_expired else 5):
        put_into(store, "again")
    for number in range(10):
        put(store, number)
    if not is_expired:
        make_again(store, root, again)
    assert [put_into(store, "again") for _ in range(3)] == [0, 1, 2]
    store.close()
    shutil.rmtree(root / "consumequeue")
    (root / "queues").write_bytes(msgspec.json.encode([("again", 0, 5, 5, 0)] if is_expired else []))
    with pytest.raises(StoreFailure, match=f"broker recover {root} --given-again"):
        MessageStore(str(root), CONFIG)
    assert [*hide_given_again(str(root))] == [again]
    for is_deleted in (False, True):
        if is_deleted:
            shutil.rmtree(root / "consumequeue")
        store = MessageStore(str(root), CONFIG)
        assert ranges_of(store)["again", 0] == (0, 3)
        store.close()
    with OfflineStore(str(root)) as stopped:
        assert stopped.verify()["problems"] == []
    assert hide_given_again(str(root)) == {}


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_topic_that_was_deleted_has_no_queues(tmp_path: Path, is_moved: bool) -> None:
    """Its messages lie in the log as long as that keeps them."""
    root = tmp_path / "store"
    store = MessageStore(str(root), CONFIG)
    for number in range(100):
        put(store, number)
    gone = QueueKey("gone", 0)
    for _ in range(10):
        put_into(store, "gone")
    if is_moved:
        put_into(store, "seldom")
    make_again(store, root, gone)
    store.close()
    as_of_java(root)
    (root / "config").mkdir()
    topics = {"plain": {"readQueueNums": 3}, "seldom": {}}
    (root / "config/topics.json").write_bytes(msgspec.json.encode({"topicConfigTable": topics}))
    if is_moved:  # queues may be derived from the log
        shutil.rmtree(root / "consumequeue")
    else:
        with OfflineStore(str(root)) as stopped:
            assert stopped.verify()["problems"] == []
    for is_deleted in (False, True, False):
        if is_deleted:
            shutil.rmtree(root / "consumequeue")
        store = MessageStore(str(root), CONFIG)
        assert {topic for topic, _ in ranges_of(store)} == ({*topics} if is_moved else {"plain"})
        store.close()
    store = MessageStore(str(root), CONFIG)
    assert put_into(store, "gone") == 0
    store.reput_once()
    assert ranges_of(store)["gone", 0] == (0, 1)
    store.close()
    store = MessageStore(str(root), CONFIG)
    assert ranges_of(store)["gone", 0] == (0, 1)
    store.close()


@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_first_start_that_is_killed_while_queues_are_derived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cleared: bool
) -> None:
    root = tmp_path / "store"
    times = count(1_700_000_000_000, 500)
    store = MessageStore(str(root), CONFIG, wall_clock=lambda: float(next(times)))
    for _ in range(5):
        put_into(store, "rare")
    for number in range(MESSAGES):
        put(store, number)
        if number == MESSAGES // 2:
            put_into(store, "seldom")
    store.reput_once()
    store.flush_queues(thorough=True)
    store.cleaner.drop_before(2 * FILE_BYTES)
    expected = ranges_of(store)
    assert expected["rare", 0] == (5, 5)
    store.close()
    as_of_java(root)
    shutil.rmtree(root / "consumequeue/seldom")
    clear = ConsumeQueues.clear

    def killed(queues: ConsumeQueues) -> None:
        if is_cleared:
            clear(queues)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "clear", killed)
        with pytest.raises(KeyboardInterrupt):
            MessageStore(str(root), CONFIG)
    store = MessageStore(str(root), CONFIG)
    assert ranges_of(store) == expected
    assert (put_into(store, "rare"), put_into(store, "seldom")) == (5, 1)
    store.close()


def test_a_takeover_without_the_queues_knows_where_they_end(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = MessageStore(str(root), CONFIG)
    for _ in range(5):
        put_into(store, "rare")
    for number in range(MESSAGES):
        put(store, number)
    store.reput_once()
    store.cleaner.drop_before(2 * FILE_BYTES)
    store.close()
    shutil.rmtree(root / "consumequeue")
    members = [MemberAddress("n0", "localhost", 1)]
    record = take_over(str(root), str(tmp_path / "member"), "n0", members).record
    assert record.queues == [("rare", 0, 5)]


def test_a_takeover_of_a_topic_that_was_made_again(tmp_path: Path) -> None:
    root, member = tmp_path / "store", tmp_path / "member"
    store = MessageStore(str(root), CONFIG)
    for _ in range(10):
        put_into(store, "again")
    for number in range(MESSAGES):
        put(store, number)
    make_again(store, root, QueueKey("again", 0))
    assert put_into(store, "again") == 0
    store.close()
    as_of_java(root)
    record = take_over(str(root), str(member), "n0", [MemberAddress("n0", "localhost", 1)]).record
    disk = OsDisk()
    old = OldLog(disk, str(member), record)
    machine = MessageMachine(disk, str(tmp_path / "derived"), CONFIG, lambda _: None, lambda: 0, old)
    answer = msgspec.msgpack.decode(machine.query(b""), type=QueueEndsAnswer)
    assert ("again", 0, 1) in answer.queues
    machine.close()
    old.close()
