"""Index files that a broker in another time zone has named, keys between two of them, and more queues
than a process has descriptors."""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from quorumlog.broker.config import ASYNC_FLUSH, MessageStoreConfig
from quorumlog.broker.message import Message, PutMessageResult, encode_records
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store import index
from quorumlog.broker.store import queues as queue_files
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.store.queues import MOST_OPEN_FILES, OpenFiles
from quorumlog.store.disk import OsDisk
from quorumlog.store.segment import Segment
from quorumlog.testing.disk import SimDisk
from tests.broker.store.store_making import (
    ROOT,
    SMALL,
    numbered,
    numbers_in_queue,
    open_store,
    put,
    put_and_wait,
    put_and_work,
    records_of,
    release,
)

HOURS_8_MS = 8 * 3_600_000


def test_a_new_index_file_is_named_after_one_of_a_broker_that_is_hours_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def named(time_ms: float) -> str:
        assert len(names) < 10, "a name is looked for millisecond by millisecond"
        names.append(index_file_name(time_ms))
        return names[-1]

    index_file_name = index.index_file_name
    monkeypatch.setattr(index, "index_file_name", named)
    now_ms = 1_795_000_000_000.0
    config = replace(SMALL, flush_disk_type=ASYNC_FLUSH)
    store = MessageStore(str(tmp_path), config, wall_clock=lambda: now_ms + HOURS_8_MS)  # local time
    put_and_work(store, *(records_of([Message("t", b"x", keys=(f"k{n}",))]) for n in range(45)))
    store.close()
    store = MessageStore(str(tmp_path), config, wall_clock=lambda: now_ms)
    put_and_work(store, *(records_of([Message("t", b"x", keys=(f"l{n}",))]) for n in range(60)))
    assert store.index is not None
    held = [file.path.rpartition("/")[2] for file in store.index.files]
    assert held == sorted(held) and len(set(held)) == len(held) == 3
    for key in ("k0", "k44", "l0", "l59"):
        assert len(store.reader.query("t", key)) == 1
    store.close()


@pytest.mark.parametrize("held", [1, 2, 3, 4])
def test_a_message_whose_keys_lie_on_both_sides_of_a_new_index_file_has_all_of_them(held: int) -> None:
    """The process ends when one file is full and the next one is not on disk."""
    disk = SimDisk()
    store = open_store(disk)
    room = SMALL.max_index_num - 1
    put_and_work(store, *(records_of([Message("t", b"x", keys=(f"k{n}",))]) for n in range(room - held)))
    keys = tuple(f"l{n}" for n in range(5))
    put_and_work(store, records_of([Message("t", b"y", keys=keys)]))
    assert store.index is not None
    assert [file.count - 1 for file in store.index.files] == [room, 5 - held]
    store.flush_queues(thorough=True)
    last = store.index.files[-1].path
    release(store)
    disk.kill()
    disk.delete(last)
    store = open_store(disk)
    for key in (*keys, "k0", f"k{room - held - 1}"):
        assert len(store.reader.query("t", key)) == 1, key
    assert store.index is not None
    assert [file.count - 1 for file in store.index.files] == [room, 5 - held]
    store.close()
    assert disk.exists(f"{ROOT}/index")


def test_a_store_with_more_queues_than_descriptors_keeps_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_OPEN_FILES < 1000
    queues, most = 40, 8
    monkeypatch.setattr(queue_files, "OpenFiles", partial(OpenFiles, most=most))
    config = MessageStoreConfig(
        flush_disk_type=ASYNC_FLUSH,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=20,
        max_index_num=40,
        message_index_enable=False,
    )
    before = len(os.listdir("/proc/self/fd"))
    store = MessageStore(str(tmp_path), config)
    for start in range(2):
        for number in range(queues):
            records = RecordBatch.contiguous(*encode_records([Message("t", b"%d" % number)], number, 0))
            result = put_and_wait(store, records)
            assert isinstance(result, PutMessageResult) and result.queue_offset == start
        store.reput_once()
        assert len(os.listdir("/proc/self/fd")) - before < most + 20
        for number in (0, 1, queues - 1):
            pulled = store.reader.pull(QueueKey("t", number), 0)
            assert [m.body for m in pulled.records.messages()] == [b"%d" % number] * (start + 1)
        store.close()
        store = MessageStore(str(tmp_path), config)
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_used_stays_open_and_one_that_is_deleted_is_empty(tmp_path: Path) -> None:
    disk = OpenFiles(OsDisk(), most=1)
    one, other = (disk.open(f"{tmp_path}/{name}", create=True) for name in "ab")
    one.pwritev([b"first"], 0)
    other.pwritev([b"second"], 0)
    with disk.use(one) as opened:  # type: ignore[arg-type]
        assert other.pread(6, 0) == b"second"
        assert opened.pread(5, 0) == b"first"
    assert (one.size(), other.size()) == (5, 6)
    disk.unlink(f"{tmp_path}/a")
    assert one.pread(5, 0) == b""
    for file in (one, other):
        file.sync() if file is other else None
        file.close()
        file.close()


def test_what_closing_a_file_tells_is_told_to_who_syncs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network file system does of writes that it could not carry out."""
    disk = OpenFiles(OsDisk(), most=1)
    one = disk.open(f"{tmp_path}/a", create=True)
    with disk.use(one) as opened:  # type: ignore[arg-type]
        close = opened.close

    def failing() -> None:
        close()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(opened, "close", failing)
    other = disk.open(f"{tmp_path}/b", create=True)
    other.pwritev([b"second"], 0)
    assert other.pread(6, 0) == b"second"
    other.sync()
    with pytest.raises(OSError):
        one.sync()
    for file in (one, other):
        file.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_syncs_no_queue_in_which_nothing_changes(
    is_clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    store = open_store(disk)
    for queue_id in range(20):
        put(store, records_of(numbered(queue_id, 1), queue_id))
    store.flush_once()
    store.reput_once()
    if is_clean:
        store.close()
    else:
        disk.kill()
    synced = Counter[str]()
    real = Segment.sync

    def counted(segment: Segment) -> None:
        synced[segment.path] += "consumequeue" in segment.path
        real(segment)

    monkeypatch.setattr(Segment, "sync", counted)
    store = open_store(disk)
    assert max(synced.values(), default=0) <= (0 if is_clean else 1), synced
    assert [len(numbers_in_queue(store, queue_id=each)) for each in range(20)] == [1] * 20
    put(store, records_of(numbered(20, 1), 3))
    store.flush_once()
    store.reput_once()
    assert numbers_in_queue(store, queue_id=3) == [3, 20]


@pytest.mark.parametrize("count", [2, 40])
def test_half_a_unit_behind_the_end_of_the_log_is_no_message(count: int) -> None:
    """It lay over two pages, of which a loss of power kept the second, with its size; and took the
    record."""
    disk = SimDisk()
    config = replace(SMALL, flush_disk_type=ASYNC_FLUSH, mapped_file_size_consume_queue=20_000)
    store = open_store(disk, config)
    for number in range(count):
        put_and_work(store, records_of(numbered(number, 1)))
    store.flush_once()
    store.reput_once()
    store.flush_queues(thorough=True)
    release(store)
    (path,) = (each for each in disk.paths() if "/consumequeue/t/0/" in each)
    content = bytearray(disk.content(path))
    unit = queue_files.units_of([0], [160], [84]).tobytes()
    content[count * len(unit) : (count + 1) * len(unit)] = unit
    disk.write_file(path, bytes(content))
    disk.kill()
    store = open_store(disk, config)
    queue = store.queues.get(QueueKey("t", 0))
    assert queue is not None and queue.max_offset == count
    (outcome,) = put_and_work(store, records_of(numbered(count, 1)))
    assert isinstance(outcome, PutMessageResult) and outcome.queue_offset == count
    store.flush_once()
    store.reput_once()
    assert numbers_in_queue(store) == [*range(count + 1)]


def test_there_is_no_room_while_a_file_would_have_to_be_opened_again(tmp_path: Path) -> None:
    """Whoever may not wait for the disk goes by it."""
    disk = OpenFiles(OsDisk(), most=2)
    first, second, third = (disk.open(f"{tmp_path}/{name}", create=True) for name in "abc")
    second.close()
    assert not disk.has_room  # the first one was closed for the third
    first.pwritev([b"again"], 0)
    third.close()
    assert disk.has_room
    first.close()
