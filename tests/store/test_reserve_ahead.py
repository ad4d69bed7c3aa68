"""Space made ahead in another thread, so that the store's own need not wait for a disk to make it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorumlog.config import MIB, StoreConfig
from quorumlog.store.disk import DiskUsage
from quorumlog.store.ledger_store import LedgerStore
from tests.store.log_making import (
    append_noop,
    append_numbered,
    new_store,
    numbered,
    open_store,
    read_log,
    sync,
)
from tests.store.stopping_disk import Stopped, StoppingDisk

CONFIG = StoreConfig(
    segment_bytes=4 * MIB, index_segment_bytes=MIB, reserve_step_bytes=2 * MIB, disk_full_ratio=1.0
)
SIZE = 20_000
"""209 entries of this size fill a data segment."""

TIMEOUT_S = 30.0

NAMES = ("data", "index")

pytestmark = pytest.mark.usefixtures("no_syncs")


def make_ahead(store: LedgerStore) -> None:
    work = store.space_ahead()
    if work is not None:
        work()


def made(path: Path) -> tuple[int, int]:
    """Segments of data and of the index."""
    return len(list((path / "data").iterdir())), len(list((path / "index").iterdir()))


@pytest.mark.parametrize(("size", "count"), [(SIZE, 10), (0, 1500)])
def test_then_appends_only_write(tmp_path: Path, size: int, count: int) -> None:
    disk = StoppingDisk()
    store = new_store(str(tmp_path), CONFIG, disk)
    append_numbered(store, count, size=size)
    make_ahead(store)
    for _ in range(100):
        disk.steps.clear()
        append_numbered(store, count, size=size)
        assert {what for what, _ in disk.steps} == {"write"}
        make_ahead(store)
    data, index = made(tmp_path)
    assert data >= 3 if size else index >= 5
    assert read_log(store) == numbered(101 * count, size=size)
    store.close()


def test_no_more_than_a_step_ahead(tmp_path: Path) -> None:
    store = new_store(str(tmp_path), CONFIG)
    append_numbered(store, 250, size=SIZE)  # 826 KB into the second segment
    for term in range(2, 20):
        append_numbered(store, 1, term)
        make_ahead(store)
    assert made(tmp_path) == (2, 1)
    store.close()


def test_nothing_ahead_of_what_a_truncation_has_cut(tmp_path: Path) -> None:
    """It was wanted near the end of the third segment and is made when the log ends in the first."""
    store = new_store(str(tmp_path), CONFIG)
    append_numbered(store, 600, size=SIZE)
    work = store.space_ahead()
    assert work is not None
    store.truncate_from(50)
    left = made(tmp_path)
    assert left[0] == 1
    work()
    assert made(tmp_path) == left
    append_numbered(store, 300, term=2, size=SIZE)
    sync(store)
    expected = numbered(50, size=SIZE) + numbered(300, term=2, size=SIZE, first=50)
    assert read_log(store) == expected
    store.close()
    store, _ = open_store(str(tmp_path), CONFIG)
    assert read_log(store) == expected
    store.close()


def test_killed_at_every_step_of_it(tmp_path: Path) -> None:
    """Nothing is lost, and at most a file without bytes has to be removed by the next start."""

    def near_the_end_of_a_segment(path: Path, disk: StoppingDisk) -> LedgerStore:
        store = new_store(str(path), CONFIG, disk)
        append_numbered(store, 100, size=SIZE)
        make_ahead(store)
        append_numbered(store, 50, size=SIZE)
        sync(store)
        return store

    disk = StoppingDisk()
    store = near_the_end_of_a_segment(tmp_path / "whole", disk)
    disk.steps.clear()
    make_ahead(store)
    store.close()
    assert {"create", "set_size", "sync_directory", "allocate"} < {what for what, _ in disk.steps}
    lines: set[str] = set()
    for stop_at in range(len(disk.steps)):
        path = tmp_path / str(stop_at)
        stopping = StoppingDisk()
        store = near_the_end_of_a_segment(path, stopping)
        stopping.stop_at = len(stopping.steps) + stop_at
        with pytest.raises(Stopped):
            make_ahead(store)
        store.close()
        store, report = open_store(str(path), CONFIG)
        lines.update(line.partition(" has ")[2] for line in report.lines)
        assert read_log(store) == numbered(150, size=SIZE)
        append_numbered(store, 100, size=SIZE)
        store.close()
    assert lines == {"no bytes: an unfinished creation, removed"}


class WaitingDisk(StoppingDisk):
    """Space is made when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.waits = threading.Event()
        self.asked = threading.Event()
        """How full it is: by an append, just before it needs the space."""

    def step(self, what: str, path: str) -> None:
        if what == "create" and not self.may_go_on.is_set():
            self.waits.set()
            assert self.may_go_on.wait(TIMEOUT_S)
        super().step(what, path)

    def usage(self, path: str) -> DiskUsage:
        self.asked.set()
        return super().usage(path)


def test_an_append_that_needs_the_segment_which_is_being_made(tmp_path: Path) -> None:
    disk = WaitingDisk()
    store = new_store(str(tmp_path), CONFIG, disk)
    append_numbered(store, 100, size=SIZE)
    make_ahead(store)
    append_numbered(store, 50, size=SIZE)
    work = store.space_ahead()
    assert work is not None
    disk.may_go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(work)
        try:
            assert disk.waits.wait(TIMEOUT_S)
            disk.asked.clear()
            append_noop(store, 2)  # its space is there: it waits for nobody
            appending = pool.submit(append_numbered, store, 100, 2, SIZE)
            assert disk.asked.wait(TIMEOUT_S)
        finally:
            disk.may_go_on.set()
        making.result()
        appending.result()
    created = [path for what, path in disk.steps if what == "create"]
    assert len(created) == len(set(created))
    assert made(tmp_path)[0] == 2
    noop = (150, 2, b"")
    assert read_log(store) == [*numbered(150, size=SIZE), noop, *numbered(100, 2, SIZE, first=151)]
    store.close()


def test_nothing_is_made_in_a_directory_that_was_given_back(tmp_path: Path) -> None:
    store = new_store(str(tmp_path), CONFIG)
    for _ in range(3):
        append_numbered(store, 60, size=SIZE)
        work = store.space_ahead()
        assert work is not None
    store.close()
    before = made(tmp_path)
    work()
    assert made(tmp_path) == before


def bytes_on_disk(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def test_a_log_that_has_just_begun_takes_little_and_its_files_have_their_full_length(
    tmp_path: Path,
) -> None:
    config = StoreConfig(disk_full_ratio=1.0)
    store = new_store(str(tmp_path), config)
    append_numbered(store, 3)
    sync(store)
    make_ahead(store)
    assert bytes_on_disk(tmp_path) < 4 * MIB
    taken = store.space_taken()
    assert 2 * MIB < taken.disk_bytes <= bytes_on_disk(tmp_path)
    assert taken.apparent_bytes == config.segment_bytes + config.index_segment_bytes
    sizes = {folder: [f.stat().st_size for f in (tmp_path / folder).iterdir()] for folder in NAMES}
    assert sizes == {"data": [config.segment_bytes], "index": [config.index_segment_bytes]}
    store.close()


def test_steps_grow_with_the_log(tmp_path: Path) -> None:
    """Up to the largest one: how often the disk is asked depends little on how long the log is."""
    disk = StoppingDisk()
    config = StoreConfig(segment_bytes=64 * MIB, reserve_step_bytes=8 * MIB, disk_full_ratio=1.0)
    store = new_store(str(tmp_path), config, disk)
    steps = []
    for _ in range(32):
        disk.steps.clear()
        append_numbered(store, 50, size=SIZE)
        make_ahead(store)
        steps.append(sum(what == "allocate" and "/data/" in path for what, path in disk.steps))
    held = store.end.position
    assert 24 * MIB < held < bytes_on_disk(tmp_path) < held + 16 * MIB
    assert sum(steps) <= 12
    assert sum(steps[16:]) <= 3
    store.close()


def test_killed_at_every_step_of_its_growth(tmp_path: Path) -> None:
    """Each start is an ordinary one and goes on behind what was acknowledged."""

    def grow(store: LedgerStore) -> Iterator[int]:
        """How many entries are acknowledged, each time that more are."""
        for _ in range(8):
            append_numbered(store, 10, size=SIZE)
            sync(store)
            yield store.end.index + 1
            make_ahead(store)

    disk = StoppingDisk()
    store = new_store(str(tmp_path / "whole"), CONFIG, disk)
    disk.steps.clear()
    assert list(grow(store))[-1] == 80
    store.close()
    assert sum(what == "allocate" for what, _ in disk.steps) >= 4
    for number, (what, _) in enumerate(disk.steps):
        if what == "write":
            continue
        path, stopping, acknowledged = str(tmp_path / f"{number}"), StoppingDisk(), 0
        store = new_store(path, CONFIG, stopping)
        stopping.stop_at = len(stopping.steps) + number
        with pytest.raises(Stopped):
            for count in grow(store):
                acknowledged = count
        store.close()
        store, report = open_store(path, CONFIG)
        assert report.lines == ()
        assert store.end.index + 1 in (acknowledged, acknowledged + 10)
        assert read_log(store) == numbered(store.end.index + 1, size=SIZE)
        append_numbered(store, 10, term=2, size=SIZE)
        store.close()
