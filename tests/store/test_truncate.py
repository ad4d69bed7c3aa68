"""Truncation: in which order it reaches the disk, and that nothing dropped ever comes back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest

from quorumlog.config import StoreConfig
from quorumlog.errors import IndexOutOfRange, StoreFailure
from quorumlog.store.disk import Disk, OsDisk, os_error
from quorumlog.store.durable_file import DurableFile
from quorumlog.store.log_points import LogRange
from quorumlog.store.memory_disk import MemoryDisk
from tests.store.log_making import (
    SMALL,
    append_numbered,
    copy_directory,
    make_directory,
    new_store,
    numbered,
    open_store,
    read_log,
    sync,
)
from tests.store.stopping_disk import Stopped, StoppingDisk


def twelve_entries(path: str, disk: OsDisk) -> None:
    """Entries 0-11 in three data and two index segments, durable."""
    make_directory(path)
    store, _ = open_store(path, disk=disk)
    append_numbered(store, 12)
    sync(store)
    store.close()


def test_order_of_the_steps(tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    twelve_entries(path, OsDisk())
    disk = StoppingDisk()
    store, _ = open_store(path, disk=disk)
    disk.steps.clear()
    store.truncate_from(2)
    steps = [(what, name.removeprefix(path + "/")) for what, name in disk.steps]
    assert steps[:4] == [("write", "durable"), ("sync", "durable")] * 2
    emptied = (
        "allocate",
        "write",
        "set_size",
        "set_size",
        "sync",
    )  # what holds the reserve of the no-ops
    at = 4
    for name, what in (
        (f"data/{3072:020d}", ("unlink",)),
        (f"data/{2048:020d}", ("unlink",)),
        (f"data/{1024:020d}", emptied),
        (f"index/{1024:020d}", ("unlink",)),
        (f"index/{768:020d}", ("unlink",)),
        (f"index/{512:020d}", emptied),
        (f"index/{256:020d}", emptied),
    ):
        expected = [(call, name) for call in what]
        if what == ("unlink",):
            expected.append(("sync_directory", name.partition("/")[0]))
        assert steps[at : at + len(expected)] == expected
        at += len(expected)
    zeroed = ("allocate", "write", "sync")
    names = (f"index/{0:020d}", f"data/{0:020d}")
    assert steps[at : at + 6] == [(call, name) for name in names for call in zeroed]
    store.close()


def test_a_refusal_at_any_step_says_what_to_do(tmp_path: Path) -> None:
    wanted = 0
    while True:
        path = str(tmp_path / str(wanted))
        twelve_entries(path, OsDisk())
        disk = StoppingDisk()
        store, _ = open_store(path, disk=disk)
        refused_step = len(disk.steps) + wanted

        def refuse(
            what: str, name: str, disk: StoppingDisk = disk, step: int = refused_step
        ) -> OSError | None:
            return os_error(errno.EIO, name) if len(disk.steps) > step else None

        disk._refuse = refuse
        try:
            store.truncate_from(2)
        except StoreFailure as failure:
            assert "Input/output error" in str(failure)
            assert str(failure).endswith("; check the disk, and replace it if it fails")
            assert "Errno" not in str(failure)
        else:
            break
        wanted += 1
    assert wanted > 20


@pytest.mark.usefixtures("no_syncs")
def test_nothing_is_left_behind_the_cut(tmp_path: Path) -> None:
    store = new_store(str(tmp_path))
    append_numbered(store, 12)
    sync(store)
    for cut in (11, 9, 8, 6, 3, 1, 0):
        store.truncate_from(cut)
        end = store.end.position
        for folder, kept in (("data", end), ("index", cut * 32)):
            for file in (tmp_path / folder).iterdir():
                skipped = max(0, kept - int(file.name))
                assert not any(file.read_bytes()[skipped:]), (cut, file.name)
        assert read_log(store) == numbered(cut)
    store.close()


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_every_step(tmp_path: Path) -> None:
    """A crash inside a truncation leaves the kept entries and at most a prefix of the dropped ones;
    asked for again, the truncation completes."""
    source = str(tmp_path / "source")
    twelve_entries(source, OsDisk())
    whole = StoppingDisk()
    path = copy_directory(source, str(tmp_path / "m"))
    store, _ = open_store(path, disk=whole)
    before = len(whole.steps)
    store.truncate_from(3)
    store.close()
    after = len(whole.steps)
    assert after - before > 12
    for stop_at in range(before, after):
        path = copy_directory(source, str(tmp_path / "m"))
        store, _ = open_store(path, disk=StoppingDisk(stop_at))
        with pytest.raises(Stopped):
            store.truncate_from(3)
        store.close()
        store, _ = open_store(path)
        log = read_log(store)
        assert log == numbered(12)[: len(log)], stop_at
        assert len(log) >= 3, stop_at
        store.truncate_from(3)
        append_numbered(store, 2, term=2)
        store.close()
        store, _ = open_store(path)
        assert read_log(store) == numbered(3) + numbered(2, term=2, first=3), stop_at
        store.close()


def test_an_old_tail_never_returns(tmp_path: Path) -> None:
    """Weakness W2 of the original: log (5, t1) (6, t5) (7, t5); cut at 6; write (6, t4); restart: the
    old (7, t5) fits behind the new (6, t4) byte for byte and must not be found there."""
    path = str(tmp_path)
    store = new_store(path)
    append_numbered(store, 6, term=1)
    append_numbered(store, 2, term=5)
    sync(store)
    store.truncate_from(6)
    append_numbered(store, 1, term=4)
    store.close()  # as a kill: nothing of the new entry was synced
    store, report = open_store(path)
    assert read_log(store) == numbered(6) + numbered(1, term=4, first=6)
    assert store.term_runs() == ((0, 1), (6, 4))
    assert report.cut_bytes == 0
    store.close()


def test_the_durable_point_falls_and_rises_again(tmp_path: Path) -> None:
    path = str(tmp_path)
    disk = OsDisk()
    store = new_store(path)
    append_numbered(store, 9)
    sync(store)

    def recorded() -> int:
        file = DurableFile.open(disk, path)
        point = file.load()
        file.close()
        assert point is not None
        assert point.index_synced_position <= point.point.position
        return point.point.index

    assert recorded() == 8
    store.truncate_from(4)
    assert recorded() == 3
    append_numbered(store, 1, term=2)
    assert recorded() == 3
    sync(store)
    assert recorded() == 4
    store.close()


def test_a_flush_that_ends_after_a_truncation_records_only_the_cut(tmp_path: Path) -> None:
    path = str(tmp_path)
    store = new_store(path)
    append_numbered(store, 4)
    sync(store)
    append_numbered(store, 8)
    task = store.begin_sync()
    assert task is not None
    store.truncate_from(6)
    append_numbered(store, 3, term=2)
    task.run()
    file = DurableFile.open(OsDisk(), path)
    point = file.load()
    file.close()
    assert point is not None
    assert point.point.entry_id == store.id_at(5)
    assert point.index_synced_position <= point.point.position
    store.finish_sync(task)
    assert store.durable.index == 5
    store.close()


def test_a_segment_stays_open_while_a_flush_needs_it(tmp_path: Path) -> None:
    store = new_store(str(tmp_path))
    append_numbered(store, 12)
    task = store.begin_sync()
    assert task is not None
    log_range = store.range_of(9, 12, 10_000)
    store.truncate_from(1)
    task.run()
    store.finish_sync(task)
    with pytest.raises(IndexOutOfRange):
        store.read(log_range)
    assert read_log(store) == numbered(1)
    store.close()


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize("disk", [MemoryDisk, OsDisk])
def test_reads_and_flushes_beside_truncations(tmp_path: Path, disk: Callable[[], Disk]) -> None:
    """Other threads read ranges and run flushes while the store's own truncates and appends: a read
    gives the entries of its range or IndexOutOfRange, and never anything else."""
    config = StoreConfig(segment_bytes=64 * 1024, index_segment_bytes=32 * 1024, disk_full_ratio=1.0)
    store = new_store(str(tmp_path), config, disk())
    ranges: SimpleQueue[tuple[LogRange, int] | None] = SimpleQueue()
    outcomes: list[str] = []

    def read_ranges() -> None:
        while (taken := ranges.get()) is not None:
            log_range, term = taken
            try:
                batch = store.read(log_range)
                batch.check_bodies()
                rows = [(entry.index, entry.term, entry.body) for entry in batch.entries()]
                assert rows == numbered(len(rows), term, first=log_range.first_index)
                outcomes.append("read")
            except IndexOutOfRange:
                outcomes.append("cut")
            except BaseException as error:
                outcomes.append(repr(error))

    readers = [Thread(target=read_ranges) for _ in range(3)]
    for reader in readers:
        reader.start()
    pool = ThreadPoolExecutor(1)
    try:
        for term in range(1, 80):
            append_numbered(store, 400, term)
            task = store.begin_sync()
            assert task is not None
            running = pool.submit(task.run)
            space = store.space_ahead()
            making = pool.submit(space) if space is not None else None
            for first in range(store.end.index - 399, store.end.index, 40):
                ranges.put((store.range_of(first, store.end.index + 1, 20_000), term))
            store.truncate_from(store.end.index - 399 + term % 300)
            append_numbered(store, 10, term + 1)
            running.result()
            if making is not None:
                making.result()
            store.finish_sync(task)
            assert store.durable.index == store.end.index - 10
            store.truncate_from(store.end.index - 9 - term % 300)
    finally:
        for _ in readers:
            ranges.put(None)
        for reader in readers:
            reader.join()
        pool.shutdown()
    store.close()
    assert set(outcomes) <= {"read", "cut"}, set(outcomes)
    assert len(outcomes) == 79 * 10


def test_the_reserve_is_made_again(tmp_path: Path) -> None:
    store = new_store(str(tmp_path))
    append_numbered(store, 12)
    store.truncate_from(3)
    # The smaller of 1 MiB and one segment: here the next segment, because the end is near the boundary.
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [f"{0:020d}", f"{1024:020d}"]
    assert store._data.reserved_position == 2 * SMALL.segment_bytes
    store.close()
