"""Where queues begin and go on once retention has taken what they had."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from quorumlog.broker.message import PutMessageResult
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.store.queues import QUEUE_ENDS_NAME
from quorumlog.testing.disk import Crashed, SimDisk
from quorumlog.version import IS_COMPILED
from tests.broker.store.store_making import (
    ROOT,
    SMALL,
    Clock,
    numbered,
    numbers_in_queue,
    open_store,
    put_and_work,
    records_of,
)

RARE, BUSY = QueueKey("rare", 0), QueueKey("t", 0)
_FILE_BYTES = SMALL.mapped_file_size_commit_log


def filled(disk: SimDisk) -> MessageStore:
    """A queue whose messages all lie in the first file, and one that fills several."""
    store = open_store(disk)
    put_and_work(store, records_of(numbered(0, 5, topic="rare")))
    put_and_work(store, *[records_of(numbered(n, 10)) for n in range(0, 90, 10)])
    return store


def range_of(store: MessageStore, key: QueueKey) -> tuple[int, int]:
    queue = store.queues.get(key)
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def next_offset(store: MessageStore, key: QueueKey) -> int:
    (outcome,) = put_and_work(store, records_of(numbered(99, 1, topic=key.topic), key.queue_id))
    assert isinstance(outcome, PutMessageResult)
    return outcome.queue_offset


def without_queues(disk: SimDisk, store: MessageStore) -> None:
    """What people delete by hand."""
    for path in [each.path for queue in store.queues.all for each in queue.files.files]:
        disk.delete(path)
    assert store.index is not None
    for file in store.index.files:
        disk.delete(file.path)


@pytest.mark.parametrize("is_killed", [False, True])
def test_queues_that_were_deleted_go_on_where_they_were_after_retention(is_killed: bool) -> None:
    disk = SimDisk()
    store = filled(disk)
    store.cleaner.drop_before(2 * _FILE_BYTES)
    assert range_of(store, RARE) == (5, 5)
    busy, kept = range_of(store, BUSY), numbers_in_queue(store)
    if is_killed:
        disk.kill()
    else:
        store.close()
    without_queues(disk, store)
    store = open_store(disk)
    assert range_of(store, RARE) == (5, 5)
    assert (range_of(store, BUSY), numbers_in_queue(store)) == (busy, kept)
    assert next_offset(store, RARE) == 5
    store.close()
    with OfflineStore(ROOT, disk) as stopped:
        assert stopped.verify()["problems"] == []


def test_a_queue_that_is_lost_does_not_begin_where_a_start_looks_first() -> None:
    """Retention was about to delete the file that its messages before lie in, and was killed."""
    disk = SimDisk()
    store = open_store(disk)
    for number in range(0, 90, 10):
        put_and_work(store, records_of(numbered(number, 10)))
    store.flush_queues(thorough=True)
    store.cleaner.drop_before(_FILE_BYTES)
    shown = numbers_in_queue(store)
    store.queues.drop_before(2 * _FILE_BYTES)
    disk.kill()
    for name in disk.list(f"{ROOT}/consumequeue/t/0"):
        disk.delete(f"{ROOT}/consumequeue/t/0/{name}")
    assert numbers_in_queue(open_store(disk)) == shown


class NoLuck(Random):
    def choice(self, seq):  # type: ignore[no-untyped-def]
        return min(seq)


def test_what_a_killed_process_gave_its_queues_is_on_disk_behind_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of all files of a queue: they were derived anew after a loss of power."""
    disk = SimDisk()
    store = open_store(disk)
    for number in range(0, 150, 10):
        if number == 90:
            store.flush_queues(thorough=True)
        put_and_work(store, records_of(numbered(number, 10)))
    disk.kill()
    store = open_store(disk, clock=Clock(1_800_000_000_000))
    put_and_work(store, records_of(numbered(150, 1, topic="rare")))
    store.flush_queues(thorough=True)
    disk.lose_power(NoLuck(0))
    assert numbers_in_queue(open_store(disk)) == list(range(150))
    assert "derived anew" not in caplog.text


def test_a_queue_that_lost_a_file_costs_another_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    store = filled(disk)
    store.cleaner.drop_before(2 * _FILE_BYTES)
    store.flush_queues(thorough=True)
    kept = numbers_in_queue(store)
    disk.kill()
    queue = store.queues.get(BUSY)
    assert queue is not None
    disk.delete(queue.files.files[0].path)
    store = open_store(disk)
    assert "derived anew" in caplog.text
    assert numbers_in_queue(store) == kept
    assert next_offset(store, RARE) == 5


def test_what_the_units_say_stands_where_nothing_of_ours_was_noted() -> None:
    """As of a Java broker's store."""
    disk = SimDisk()
    store = filled(disk)
    store.cleaner.drop_before(2 * _FILE_BYTES)
    kept = numbers_in_queue(store)
    queue = store.queues.get(BUSY)
    assert queue is not None
    path = queue.files.files[1].path
    store.close()
    disk.delete(path)
    disk.delete(f"{ROOT}/{QUEUE_ENDS_NAME}")
    store = open_store(disk)
    assert numbers_in_queue(store) == kept
    assert next_offset(store, RARE) == 5


def test_retention_that_is_killed_at_any_step_loses_no_number() -> None:
    steps = 0
    while True:
        disk = SimDisk()
        store = filled(disk)
        disk.crash_countdown = steps
        try:
            store.cleaner.drop_before(2 * _FILE_BYTES)
            done = True
        except Crashed:
            done = False
        disk.crash_countdown = None
        disk.lose_power(Random(steps))
        held = disk.exists(f"{ROOT}/consumequeue/rare/0/{0:020d}")
        if steps % 2 and held:
            disk.delete(f"{ROOT}/consumequeue/rare/0/{0:020d}")
        store = open_store(disk)
        assert next_offset(store, RARE) == 5, steps
        assert next_offset(store, BUSY) == 90, steps
        low = numbers_in_queue(store)[0]
        assert numbers_in_queue(store) == [*range(low, 90), 99], steps
        if done:
            break
        steps += 1
    assert steps > 5


def test_after_a_start_too_queues_begin_with_what_is_there() -> None:
    disk = SimDisk()
    store = filled(disk)
    store.cleaner.drop_before(2 * _FILE_BYTES)
    ranges, kept = (range_of(store, RARE), range_of(store, BUSY)), numbers_in_queue(store)
    assert 0 < kept[0] < kept[-1] == 89
    store.close()
    with OfflineStore(ROOT, disk) as stopped:
        assert stopped.verify()["problems"] == []
        rows = {row["topic"]: row for row in stopped.summary()["queues"]}
    assert (rows["t"]["min_offset"], rows["rare"]["min_offset"]) == (kept[0], 5)
    for _ in range(2):
        store = open_store(disk)
        assert (range_of(store, RARE), range_of(store, BUSY)) == ranges
        assert numbers_in_queue(store) == kept
        assert store.reader.offset_at(BUSY, 0) == kept[0]
        disk.kill()


def test_a_unit_that_names_another_message_is_no_message_that_was_dispatched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a_unit_that_names_another_message()
    assert "its unit names another message" in caplog.text


def a_unit_that_names_another_message() -> None:
    disk = SimDisk()
    store = filled(disk)
    queue = store.queues.get(BUSY)
    assert queue is not None
    path, other = queue.files.files[-1].path, queue.units(3, 4).tobytes()
    store.close()
    file = disk.open(path)
    file.pwritev([other], 0)
    file.close()
    store = open_store(disk)
    queue = store.queues.get(BUSY)
    assert queue is not None
    assert (np.diff(queue.units(0, 90)["position"]) > 0).all(), "a message is shown twice"
    assert queue.max_offset == 90


def test_a_queue_tells_where_it_begins_once_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread notes the begins of all queues, and a start goes by them."""
    store = open_store(SimDisk())
    queue = store.queues.queue_of(RARE)
    told = []
    reserve = queue.files.reserve

    def looked_at(stop_position: int, step_bytes: int) -> None:
        told.append((queue.begin_is_known, queue.min_offset))
        reserve(stop_position, step_bytes)

    monkeypatch.setattr(queue.files, "reserve", looked_at)
    queue.begin_at(7)
    assert told == [(False, 0), (False, 0)]
    assert (queue.begin_is_known, queue.min_offset, queue.max_offset) == (True, 7, 7)
    store.close()


def test_a_creation_has_its_log_on_disk_before_its_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues without a log are of a disk that is not mounted, and refused."""
    disk = SimDisk()
    steps: list[str] = []
    make, sync = disk.make_directory, disk.sync_directory

    def made(path: str) -> None:
        steps.append(path)
        make(path)

    def synced(path: str) -> None:
        steps.append(f"sync {path}")
        sync(path)

    monkeypatch.setattr(disk, "make_directory", made)
    monkeypatch.setattr(disk, "sync_directory", synced)
    open_store(disk).close()
    between = steps[steps.index(f"{ROOT}/commitlog") : steps.index(f"{ROOT}/consumequeue")]
    assert f"sync {ROOT}" in between


@pytest.mark.skipif(IS_COMPILED, reason="a compiled file takes no other method")
def test_a_flush_that_ends_behind_another_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that flushes and the one that deletes old files do it at once."""
    store = open_store(SimDisk())
    put_and_work(store, records_of(numbered(0, 3, topic="rare")))
    queue = store.queues.get(RARE)
    assert queue is not None
    (file,) = queue.files.files
    sync = file.sync

    def overtaken() -> None:
        monkeypatch.undo()
        put_and_work(store, records_of(numbered(3, 4, topic="rare")))
        queue.flush(0)
        sync()

    queue.flushed_offset = 0
    monkeypatch.setattr(file, "sync", overtaken)
    queue.flush(0)
    assert queue.flushed_offset == queue.max_offset == 7
    store.close()


def test_an_index_that_is_derived_anew_is_whole_wherever_the_power_goes() -> None:
    """Of its files of before some may be back then, and others not."""
    for effect in range(4, 400, 4):
        disk = SimDisk()
        store = filled(disk)
        store.close()
        for name in disk.list(f"{ROOT}/consumequeue/rare/0"):
            disk.delete(f"{ROOT}/consumequeue/rare/0/{name}")
        disk.crash_countdown = effect
        try:
            open_store(disk)
        except Crashed:
            disk.lose_power(Random(effect))
        else:
            break
        store = open_store(disk)
        store.reput_once()
        lost = [n for n in range(90) if not len(store.reader.query("t", f"k{n}", most=1))]
        assert not lost, (effect, lost)
    else:
        raise AssertionError("the start has more effects than that")
