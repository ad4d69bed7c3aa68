"""Crashes at every step and every byte, of the process and of the power.

What must hold after any of them under SYNC_FLUSH: every message that was acknowledged is there, the log
is a prefix of what was put, and queues and index name exactly what it holds.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey
from quorumlog.testing.disk import Crashed, SimDisk
from tests.broker.store.store_making import (
    ROOT,
    SMALL,
    Clock,
    is_ok,
    numbered,
    numbers_in_log,
    numbers_in_queue,
    open_store,
    put,
    put_and_work,
    records_of,
    work,
)

TURNS = 12
STRIDE = int(os.environ.get("QUORUMLOG_CRASH_STRIDE", "5"))
"""1, `make broker-crashes`: at every step; otherwise at each of so many."""


def life(disk: SimDisk, clock: Clock, acknowledged: list[int], first: int = 0) -> None:
    """A store is opened, filled over several files, and closed. Three messages a turn, in two queues."""
    store = open_store(disk, clock=clock)
    for turn in range(TURNS):
        number = first + 3 * turn
        batches = records_of(numbered(number, 2)), records_of(numbered(number + 2, 1), 1)
        for batch, answer in zip(batches, put_and_work(store, *batches), strict=True):
            assert is_ok(answer)
            acknowledged += [int(message.body[:6]) for message in batch.messages()]
        if turn % 5 == 4:
            store.flush_queues(thorough=True)
    store.close()


def check(disk: SimDisk, clock: Clock, acknowledged: list[int], first_stop: int) -> None:
    store = open_store(disk, clock=clock)
    held = numbers_in_log_of(disk)
    assert held == list(range(len(held))), "the log is not a prefix of what was put"
    assert set(acknowledged) <= set(held), "an acknowledged message is lost"
    assert len(held) <= first_stop
    in_queues = [*numbers_in_queue(store), *numbers_in_queue(store, queue_id=1)]
    assert sorted(in_queues) == held
    for number in held[-3:]:
        (found,) = store.reader.query("t", f"k{number}").messages()
        assert int(found.body[:6]) == number
    # It goes on where it was.
    (answer,) = put_and_work(store, records_of(numbered(len(held), 1)))
    assert is_ok(answer)
    assert numbers_in_queue(store)[-1] == len(held)
    store.close()
    with OfflineStore(ROOT, disk) as stopped:
        report = stopped.verify()
    assert report["problems"] == []
    assert report["messages"] == len(held) + 1


def numbers_in_log_of(disk: SimDisk) -> list[int]:
    lock = disk._locks.pop(f"{ROOT}/lock")
    try:
        return numbers_in_log(disk)
    finally:
        disk._locks[f"{ROOT}/lock"] = lock


def effects_of_a_life() -> int:
    disk = SimDisk()
    disk.crash_countdown = 1_000_000
    life(disk, Clock(), [])
    return 1_000_000 - disk.crash_countdown


EFFECTS = effects_of_a_life()


def a_crash_at_every_step(power: bool, *, stride: int = STRIDE, luck: int = 0) -> None:
    for step in range(1 + power, EFFECTS + 1, stride):
        disk, clock, acknowledged = SimDisk(), Clock(), list[int]()
        random = Random(1000 * luck + step)
        disk.crash_countdown = step
        disk.crash_random = random
        with pytest.raises(Crashed):
            life(disk, clock, acknowledged)
        if power:
            disk.lose_power(random)
        else:
            disk.kill()
        check(disk, clock, acknowledged, 3 * TURNS)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_a_crash_at_every_step(power: bool) -> None:
    a_crash_at_every_step(power)


def power_is_lost_after_a_killed_process_was_started_again(stride: int = STRIDE) -> None:
    """What the killed one had made and not synced is found in the cache."""
    for step in range(1, EFFECTS + 1, stride):
        disk, clock, acknowledged = SimDisk(), Clock(), list[int]()
        disk.crash_countdown = step
        with pytest.raises(Crashed):
            life(disk, clock, acknowledged)
        disk.kill()
        store = open_store(disk, clock=clock)
        number = len(numbers_in_log_of(disk))
        (answer,) = put_and_work(store, records_of(numbered(number, 1)))
        assert is_ok(answer)
        disk.lose_power(Random(step))
        check(disk, clock, [*acknowledged, number], 3 * TURNS + 1)


def test_power_is_lost_after_a_killed_process_was_started_again() -> None:
    power_is_lost_after_a_killed_process_was_started_again()


def test_a_crash_at_every_step_of_a_recovery() -> None:
    """The power is lost while a start puts right what another loss of power has left."""
    disk, clock, acknowledged = SimDisk(), Clock(), list[int]()
    disk.crash_countdown = EFFECTS * 2 // 3
    with pytest.raises(Crashed):
        life(disk, clock, acknowledged)
    disk.lose_power(Random(1))
    after = disk.platter()
    step = 1 - STRIDE
    while True:
        step += STRIDE
        again = after.platter()
        again.crash_countdown = step
        try:
            open_store(again, clock=clock).close()
        except Crashed:
            again.lose_power(Random(step))
            check(again, clock, acknowledged, 3 * TURNS)
        else:
            break
    assert step > 20


@pytest.mark.parametrize("rest", [0x00, 0xA5])
def test_a_cut_at_every_byte_of_the_last_write(rest: int) -> None:
    """Of the bytes of a turn that runs over the end of a file only the first ones reached the disk."""
    disk = SimDisk()
    clock = Clock()
    store = open_store(disk, clock=clock)
    held = 0
    while store.commit_log.max_offset < SMALL.mapped_file_size_commit_log - 400:
        put_and_work(store, records_of(numbered(held, 1)))
        held += 1
    start = store.commit_log.max_offset
    put(store, *[records_of(numbered(held + number, 1)) for number in range(4)])
    stop = store.commit_log.max_offset
    assert start < SMALL.mapped_file_size_commit_log < stop
    disk.kill()
    after = disk.snapshot()
    paths = sorted(path for path in after if "/commitlog/" in path)
    whole = b"".join(after[path] for path in paths)
    for cut in range(start, stop, 3 * STRIDE):
        torn = whole[:cut] + bytes([rest]) * (stop - cut) + whole[stop:]
        contents = dict(after)
        for number, path in enumerate(paths):
            size = SMALL.mapped_file_size_commit_log
            contents[path] = torn[number * size : (number + 1) * size]
        disk.restore(contents)
        again = open_store(disk, clock=clock)
        found = numbers_in_queue(again)
        assert found[:held] == list(range(held))
        assert found == list(range(len(found)))
        disk.kill()


def test_async_flush_loses_only_what_was_not_flushed() -> None:
    config = replace(SMALL, flush_disk_type=ASYNC_FLUSH)
    for seed in range(20):
        disk, clock, random = SimDisk(), Clock(), Random(seed)
        store = open_store(disk, config, clock)
        flushed = 0
        for number in range(30):
            (answer,) = put(store, records_of(numbered(number, 1)))
            assert is_ok(answer), "an asynchronous put is answered at once"
            if random.random() < 0.2:
                store.commit_log.flush(0)
                flushed = number + 1
            store.reput_once()
        disk.lose_power(random)
        again = open_store(disk, config, clock)
        found = numbers_in_queue(again)
        assert found == list(range(len(found)))
        assert len(found) >= flushed
        assert len(again.queues.get(QueueKey("t", 0)).units(0, 99)) == len(found)  # type: ignore[union-attr]
        disk.kill()


def test_a_failed_sync_stops_the_store_and_promises_nothing() -> None:
    disk = SimDisk()
    store = open_store(disk)
    assert is_ok(put_and_work(store, records_of(numbered(0, 1)))[0])
    answers = put(store, records_of(numbered(1, 1)))
    disk.fail_next_sync("commitlog")
    with pytest.raises(Exception, match="synced"):
        work(store)
    assert [getattr(answer, "status", None).name for answer in answers] == ["SERVICE_NOT_AVAILABLE"]  # type: ignore[union-attr]
    (refused,) = put(store, records_of(numbered(2, 1)))
    assert "stopped" in str(refused)
    store.close()
    assert disk.exists(f"{ROOT}/abort"), "it is not a clean stop"
