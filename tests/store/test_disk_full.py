"""No space: appends are refused whole, control entries still go, and it ends by itself."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import KIB, StoreConfig
from quorumlog.entry import HardState
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import DirectoryDamaged, DiskFull, StoreFailure
from quorumlog.store.disk import DiskUsage, OsDisk, OsFile
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.testing.disk import Crashed, SimDisk
from tests.store.log_making import (
    append_batch,
    append_bodies,
    append_noop,
    append_numbered,
    make_directory,
    numbered,
    open_store,
    read_log,
    repair_from,
    sync,
)
from tests.store.sim_logs import CONFIG as SIMULATED
from tests.store.sim_logs import data_path, open_simulated
from tests.store.stopping_disk import StoppingDisk

CONFIG = StoreConfig(
    segment_bytes=4096, index_segment_bytes=1024, reserve_step_bytes=1024, disk_full_ratio=0.9
)


class FullDisk(OsDisk):
    """The real disk with so much left to reserve, and with calls that fail."""

    def __init__(self, free_bytes: int = 1 << 30) -> None:
        super().__init__()
        self.free_bytes = free_bytes
        self.used_ratio = 0.0
        self.error = errno.ENOSPC
        self.failing = ""
        """A call that fails with `error` whatever is free: open, allocate, write, sync."""

    def check(self, call: str) -> None:
        if call == self.failing:
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        if create:
            self.check("open")
        return FullFile(self, super().open(path, writable=writable, create=create))

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(1000, round(1000 * (1 - self.used_ratio)))


class FullFile(OsFile):
    def __init__(self, disk: FullDisk, opened: OsFile) -> None:
        super().__init__(opened.path, opened._descriptor, opened._times)
        self._disk = disk

    def allocate(self, position: int, size_bytes: int) -> None:
        self._disk.check("allocate")
        if size_bytes > self._disk.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk.free_bytes -= size_bytes
        super().allocate(position, size_bytes)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.check("write")
        super().pwritev(buffers, position)

    def sync(self) -> None:
        self._disk.check("sync")
        super().sync()


def open_on(disk: FullDisk, path: Path) -> LedgerStore:
    make_directory(str(path))
    return open_store(str(path), CONFIG, disk)[0]


def append_until_full(store: LedgerStore, size: int = 200) -> int:
    """Returns how many entries there are once one is refused."""
    for _ in range(10_000):
        try:
            append_numbered(store, 1, size=size)
        except DiskFull:
            return store.end.index + 1
    raise AssertionError("the disk never filled up")


def test_refused_whole_and_nothing_changed(tmp_path: Path) -> None:
    disk = FullDisk()
    store = open_on(disk, tmp_path)
    append_numbered(store, 5)
    disk.free_bytes = 0
    count = append_until_full(store)
    end = store.end
    with pytest.raises(DiskFull, match="no space"):
        append_numbered(store, 50)
    assert store.end == end
    assert read_log(store) == numbered(count)
    sync(store)
    assert store.durable == store.end
    store.close()


def test_it_ends_when_space_returns(tmp_path: Path) -> None:
    disk = FullDisk(20_000)
    store = open_on(disk, tmp_path)
    count = append_until_full(store)
    disk.free_bytes = 1 << 20
    append_numbered(store, 40)
    assert read_log(store) == numbered(count + 40)
    store.close()


def test_control_entries_use_the_reserve(tmp_path: Path) -> None:
    """The smaller of 1 MiB and one segment: here 4096 bytes, 85 no-ops with their index units."""
    disk = FullDisk(30_000)
    store = open_on(disk, tmp_path)
    append_until_full(store)
    disk.free_bytes = 0
    noops = 0
    for term in range(2, 2 + 4096 // 48):
        append_noop(store, term)
        noops += 1
    assert noops == 85
    with pytest.raises(DiskFull):
        append_numbered(store, 1, term=1000)
    with pytest.raises(DiskFull):
        for term in range(1000, 1100):
            append_noop(store, term)
    sync(store)
    store.close()


def test_a_reservation_is_synced_before_data_counts_on_it(tmp_path: Path) -> None:
    make_directory(str(tmp_path))
    disk = StoppingDisk()
    store, _ = open_store(str(tmp_path), CONFIG, disk)
    disk.steps.clear()
    append_numbered(store, 40)
    allocated = [i for i, (what, _) in enumerate(disk.steps) if what == "allocate"]
    assert len(allocated) > 4
    for i in allocated:
        assert disk.steps[i + 1] == ("sync", disk.steps[i][1])
    assert max(allocated) < min(i for i, (what, _) in enumerate(disk.steps) if what == "write")
    store.close()


@pytest.mark.parametrize("size", [0, 1, 100, 200, 500, 1000, 2000, 4000])
def test_the_reserve_holds_wherever_the_data_ended(tmp_path: Path, size: int) -> None:
    disk = FullDisk(30_000)
    store = open_on(disk, tmp_path)
    append_until_full(store, size)
    disk.free_bytes = 0
    for term in range(2, 60):
        append_noop(store, term)
    store.close()


def test_a_restart_on_a_full_disk(tmp_path: Path) -> None:
    disk = FullDisk(30_000)
    store = open_on(disk, tmp_path)
    count = append_until_full(store)
    sync(store)
    store.close()
    disk.free_bytes = 0
    store, report = open_store(str(tmp_path), CONFIG, disk)
    assert report.lines == ()
    assert read_log(store) == numbered(count)
    with pytest.raises(DiskFull):
        append_numbered(store, 20)
    disk.free_bytes = 1 << 20
    append_numbered(store, 20)
    store.close()


def full_to_the_brim(size: int, used_noops: int = 0) -> tuple[SimDisk, LedgerStore]:
    """Data until it is refused, some no-ops, and a neighbour who takes at once what becomes free."""
    disk = SimDisk()
    disk.capacity_bytes = 60_000
    make_directory("/m", disk)
    store, _ = open_store("/m", CONFIG, disk)
    append_until_full(store, size)
    disk.has_greedy_neighbour = True
    usage = disk.usage("/")
    disk.capacity_bytes = usage.total_bytes - usage.free_bytes
    for term in range(2, 2 + used_noops):
        append_noop(store, term)
    sync(store)
    return disk, store


def noops_until_full(store: LedgerStore) -> int:
    for count in range(10_000):
        try:
            append_noop(store, 1000 + count)
        except DiskFull:
            return count
    raise AssertionError("the reserve has no end")


@pytest.mark.parametrize("used_noops", [0, 1, 30, 85])
@pytest.mark.parametrize("size", [0, 100, 200, 500, 2000, 4000])
def test_a_start_keeps_the_reserve_of_no_ops(size: int, used_noops: int) -> None:
    disk, store = full_to_the_brim(size, used_noops)
    count = noops_until_full(store)
    assert count + used_noops >= 85
    disk, store = full_to_the_brim(size, used_noops)
    for _ in range(2):
        end = store.end
        store.close()
        disk.kill()
        store, report = open_store("/m", CONFIG, disk)
        assert (store.end, report.lines) == (end, ())
    assert min(count, 85 - used_noops) <= noops_until_full(store) <= count
    sync(store)
    store.close()


@pytest.mark.parametrize("used_noops", [0, 30])
@pytest.mark.parametrize("size", [0, 200, 500])
def test_no_ops_go_on_where_the_reserve_of_the_index_was_lost(size: int, used_noops: int) -> None:
    """With a file, on a disk that a neighbour has filled meanwhile: the data has its reserve, and the
    index follows from it."""
    disk, store = full_to_the_brim(size, used_noops)
    store.close()
    disk.kill()
    positions = [int(path.rpartition("/")[2]) for path in disk.paths() if "/index/" in path]
    disk.delete(f"/m/index/{sorted(positions)[-2]:020d}")
    store, report = open_store("/m", CONFIG, disk)
    assert "index" in report.lines[0]
    assert noops_until_full(store) + used_noops >= 85
    sync(store)
    held = read_log(store)
    disk.capacity_bytes += 60_000
    disk.has_greedy_neighbour = False
    append_bodies(store, [b"there is space again"], term=5000)
    sync(store)
    store.close()
    disk.kill()
    store, report = open_store("/m", CONFIG, disk)
    *before, (_, _, last) = read_log(store)
    assert (report.lines, before, last) == ((), held, b"there is space again")
    store.close()


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("cut", [3, 35, 45])
def test_a_cut_in_front_of_an_index_that_waits_in_memory(cut: int, together: int) -> None:
    """A new leader's own control entries, several at once, on the disk that is still full."""
    disk, store = full_to_the_brim(500)
    store.close()
    disk.kill()
    positions = [int(path.rpartition("/")[2]) for path in disk.paths() if "/index/" in path]
    disk.delete(f"/m/index/{sorted(positions)[-2]:020d}")
    store, _ = open_store("/m", CONFIG, disk)
    for term in range(100, 140):
        append_noop(store, term)
    store.truncate_from(store.end.index + 1 - cut)
    for term in range(200, 200 + 45 // together):
        noops = EntryBatch.concatenate([EntryBatch.noop() for _ in range(together)])
        append_batch(store, noops, term, control=True)
    sync(store)
    held = read_log(store)
    store.close()
    disk.kill()
    store, _ = open_store("/m", CONFIG, disk)
    assert read_log(store) == held
    store.close()


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
@pytest.mark.parametrize("size", [0, 200, 500, 2000])
def test_a_cut_keeps_the_reserve_of_no_ops(size: int, cut: int) -> None:
    disk, store = full_to_the_brim(size)
    cut = min(cut, store.end.index)
    held = read_log(store)[:-cut]
    store.truncate_from(store.end.index + 1 - cut)
    assert noops_until_full(store) >= 85
    assert read_log(store)[: len(held)] == held
    sync(store)
    store.close()
    disk.kill()
    store, report = open_store("/m", CONFIG, disk)
    assert report.lines == ()
    assert read_log(store)[: len(held)] == held
    store.close()


def test_no_segment_without_space_is_left(tmp_path: Path) -> None:
    disk = FullDisk(0)
    store = open_on(disk, tmp_path)
    for failing in ("", "open"):
        disk.failing = failing
        with pytest.raises(DiskFull):
            append_numbered(store, 1)
        assert list((tmp_path / "data").iterdir()) == []
    disk.failing, disk.free_bytes = "", 1 << 20
    append_numbered(store, 1)
    store.close()


def test_the_watermark(tmp_path: Path) -> None:
    disk = FullDisk()
    store = open_on(disk, tmp_path)
    append_numbered(store, 3)
    disk.used_ratio = 0.91
    with pytest.raises(DiskFull, match=r"fuller than disk_full_ratio \(0.9 of 1\) allows: free space"):
        append_numbered(store, 100)
    append_noop(store, 2)
    assert store.end.index == 3
    disk.used_ratio = 0.89
    append_numbered(store, 100, term=2)
    store.close()


@pytest.mark.parametrize(
    ("used_ratio", "free_bytes", "is_made"),
    [(0.0, 1 << 30, True), (0.95, 1 << 30, False), (0.0, 0, False)],
)
def test_space_ahead_is_left_to_the_next_append_where_there_is_none(
    tmp_path: Path, used_ratio: float, free_bytes: int, is_made: bool
) -> None:
    disk = FullDisk()
    path = str(tmp_path / "m")
    make_directory(path)
    large = StoreConfig(segment_bytes=8 << 20, reserve_step_bytes=1 << 20, disk_full_ratio=0.9)
    store, _ = open_store(path, large, disk)
    append_bodies(store, [bytes(1000)] * 600)
    work = store.space_ahead()
    assert work is not None
    disk.used_ratio, disk.free_bytes = used_ratio, free_bytes
    work()
    assert (disk.free_bytes < free_bytes) is is_made
    if not is_made:
        assert store.space_ahead() is None, "asked again although nothing has moved"
    sync(store)
    assert store.durable == store.end
    if is_made:
        append_bodies(store, [bytes(1000)] * 1500)
    else:
        with pytest.raises(DiskFull):
            append_bodies(store, [bytes(1000)] * 1500)
        disk.used_ratio, disk.free_bytes = 0.0, 1 << 30
        for _ in range(20):
            append_bodies(store, [bytes(1000)] * 100)
            if store.space_ahead() is not None:
                break
        else:
            pytest.fail("never asked again")
    store.close()


@pytest.mark.parametrize(
    ("failing", "error"),
    [("allocate", errno.EIO), ("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.ENOSPC)],
)
def test_every_other_error_stops_the_member(tmp_path: Path, failing: str, error: int) -> None:
    disk = FullDisk()
    store = open_on(disk, tmp_path)
    append_numbered(store, 1)
    disk.failing, disk.error = failing, error
    with pytest.raises(StoreFailure):
        append_numbered(store, 30)
        sync(store)
    store.close()


def test_quota_is_lack_of_space(tmp_path: Path) -> None:
    disk = FullDisk()
    store = open_on(disk, tmp_path)
    disk.failing, disk.error = "allocate", errno.EDQUOT
    with pytest.raises(DiskFull):
        append_numbered(store, 100)
    store.close()


def test_no_space_to_keep_a_torn_tail_aside_stops_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    store = open_on(disk, tmp_path)
    append_numbered(store, 2)
    sync(store)
    append_numbered(store, 2)
    store.close()
    with (tmp_path / "data" / f"{0:020d}").open("r+b") as opened:
        opened.seek(2 * 248 + 100)
        opened.write(b"torn")
    disk.failing = "open"
    store, report = open_store(str(tmp_path), CONFIG, disk)
    assert read_log(store) == numbered(2)
    assert report.set_aside == ""
    assert any("no space to keep 496 cut bytes" in line for line in report.lines)
    store.close()


# ---------------------------------------------------------------- a real small file system


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """8 MiB of tmpfs, where this user may mount one."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a tmpfs needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_file_system_fills_up_and_empties_again(small_file_system: Path) -> None:
    path = str(small_file_system / "m")
    config = StoreConfig(
        segment_bytes=1 << 20,
        index_segment_bytes=64 * KIB,
        reserve_step_bytes=256 * KIB,
        disk_full_ratio=0.9,
    )
    make_directory(path)
    store, _ = open_store(path, config)
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    count = append_until_full(store, size=20_000)
    assert 50 < count < 400
    append_noop(store, 2)
    ballast.write_bytes(bytes(os.statvfs(small_file_system).f_bavail * 4096 + (2 << 20)))
    with pytest.raises(DiskFull):
        append_numbered(store, 1, term=2, size=20_000)
    for term in range(3, 200):
        append_noop(store, term)
    sync(store)
    assert store.durable == store.end
    end = store.end
    store.close()

    store, report = open_store(path, config)
    assert store.end == end
    assert report.lines == ()
    append_noop(store, 200)
    with pytest.raises(DiskFull):
        append_bodies(store, [bytes(20_000)] * 100, 200)
    ballast.unlink()
    append_numbered(store, 1, term=200, size=20_000)
    sync(store)
    assert store.durable == store.end
    store.close()


def test_a_batch_is_refused_whole_across_segments(small_file_system: Path) -> None:
    path = str(small_file_system / "m")
    config = StoreConfig(
        segment_bytes=1 << 20,
        index_segment_bytes=64 * KIB,
        reserve_step_bytes=1 << 20,
        disk_full_ratio=1.0,
    )
    make_directory(path)
    store, _ = open_store(path, config)
    append_numbered(store, 1)
    batch = EntryBatch.from_bodies([bytes(60_000)] * 200)
    with pytest.raises(DiskFull):
        store.plan(batch.sizes)
    assert store.end.index == 0
    append_numbered(store, 1)
    assert read_log(store) == numbered(2)
    store.close()


def test_a_data_file_that_is_lost_on_a_full_disk_stops_nobody_and_waits_for_space() -> None:
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, 150)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    twin_disk = SimDisk()
    twin_disk.restore(disk.snapshot())
    twin = open_simulated(twin_disk).store
    disk.delete(data_path(SIMULATED.segment_bytes))
    disk.capacity_bytes = disk._used_bytes()
    for _ in range(2):
        store = open_simulated(disk).store
        ((first, stop),) = [(each.first_index, each.stop_index) for each in store.damaged]
        with pytest.raises(DiskFull):
            repair_from(twin, store)
        assert [(each.first_index, each.stop_index) for each in store.damaged] == [(first, stop)]
        disk.kill()
    disk.capacity_bytes *= 2
    store = open_simulated(disk).store
    repair_from(twin, store)
    assert read_log(store) == numbered(150)


@pytest.mark.parametrize("cut", [1, 40, 69, 150, 290])
@pytest.mark.parametrize("is_index_lost", [False, True])
@pytest.mark.parametrize("lost", range(5))
def test_a_segment_that_is_lost_on_a_full_disk_can_be_cut(
    lost: int, is_index_lost: bool, cut: int
) -> None:
    """Wherever the cut is: in front of what is lost, in it or behind it."""
    disk = SimDisk()
    directory = open_simulated(disk)
    directory.save_hard_state(HardState(3000, None))
    append_numbered(directory.store, cut)
    end = directory.store.end
    append_numbered(directory.store, 300 - cut)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    disk.delete(data_path(lost * SIMULATED.segment_bytes))
    if is_index_lost:
        disk.delete(f"m/index/{SIMULATED.index_segment_bytes:020d}")
    disk.capacity_bytes = disk._used_bytes()
    disk.has_greedy_neighbour = True
    store = open_simulated(disk).store
    assert store.damaged
    store.truncate_from(cut, end)
    assert (store.end.index, store.durable.index) == (cut - 1, cut - 1)
    noops = noops_until_full(store)
    disk.kill()
    store = open_simulated(disk).store
    assert store.end.index == cut - 1 + noops, "what was reserved had no space"
    sync(store)


@pytest.mark.parametrize("size_bytes", [-1, 0, 320, 2000, SIMULATED.index_segment_bytes - 1])
@pytest.mark.parametrize("segment", [0, 1])
def test_an_index_file_that_is_lost_on_a_full_disk_stops_nobody(segment: int, size_bytes: int) -> None:
    """-1: it is missing; else it is as long. What it held is told by the data."""
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, 300)
    sync(directory.store)
    directory.close(clean=True)
    path = f"m/index/{segment * SIMULATED.index_segment_bytes:020d}"
    disk.kill()
    if size_bytes < 0:
        disk.delete(path)
    else:
        disk.truncate_file(path, size_bytes)
    disk.capacity_bytes = disk._used_bytes()
    for _ in range(2):
        store = open_simulated(disk).store
        assert read_log(store) == numbered(300)
        assert not store.damaged
        assert store.term_runs() == ((0, 1),)
        with pytest.raises(DiskFull):
            append_numbered(store, 100)
        disk.kill()
    store = open_simulated(disk).store
    store.truncate_from(250)
    store.truncate_from(120)
    assert read_log(store) == numbered(120)
    disk.kill()
    store = open_simulated(disk).store
    assert read_log(store) == numbered(120)
    disk.capacity_bytes *= 2
    append_numbered(store, 10)
    sync(store)
    assert read_log(store) == numbered(130)
    disk.kill()
    disk = disk.platter()
    directory = open_simulated(disk)
    assert read_log(directory.store) == numbered(130)
    directory.close(clean=True)
    disk.kill()
    assert open_simulated(disk).report == (), "the index is not on the disk"


def test_a_start_that_dies_after_it_made_an_index_file_again_on_a_full_disk_stops_no_other() -> None:
    """The file has its length then, and no units: the next start must not believe it."""
    deaths = 0
    while True:
        disk = SimDisk()
        directory = open_simulated(disk)
        directory.save_hard_state(HardState(30, None))
        for term in range(1, 31):
            append_numbered(directory.store, 20, term=term)
        sync(directory.store)
        directory.close(clean=True)
        disk.kill()
        disk.delete(f"m/index/{SIMULATED.index_segment_bytes:020d}")
        disk.capacity_bytes = disk._used_bytes()
        disk.crash_countdown = deaths + 1
        try:
            open_simulated(disk)
        except Crashed:
            deaths += 1
        else:
            break
        disk.kill()
        store = open_simulated(disk).store
        assert store.term_runs() == tuple(((term - 1) * 20, term) for term in range(1, 31))
        assert len(read_log(store)) == 600
    assert deaths > 50


def test_units_that_are_lost_on_a_full_disk_are_written_again_once_there_is_space() -> None:
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, 300)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    store = open_simulated(disk).store
    disk.truncate_file(f"m/index/{0:020d}", 0)
    disk.capacity_bytes = disk._used_bytes()
    disk.has_greedy_neighbour = True
    for _ in range(2):
        assert store.settle(store.examine(0, 300)) == ()
        assert store.unsettled is not None
        with pytest.raises(DirectoryDamaged) as damage:
            read_log(store)
        assert not store.settle_now(damage.value)
    disk.capacity_bytes *= 2
    assert store.settle(store.examine(0, 300)) == ()
    assert store.unsettled is None
    assert read_log(store) == numbered(300)


def test_a_segment_that_a_start_found_sealed_can_be_cut_on_a_full_disk() -> None:
    segment_bytes = 1 << 20
    config = StoreConfig(segment_bytes=segment_bytes, index_segment_bytes=1 << 20, disk_full_ratio=1.0)
    disk = SimDisk()
    store = open_simulated(disk, config=config).store
    append_numbered(store, 1, size=1000)
    sync(store)
    while store.end.position < 2 * segment_bytes:
        append_numbered(store, 1, size=segment_bytes // 3)
    disk.kill()
    store = open_simulated(disk, config=config).store
    disk.capacity_bytes = disk._used_bytes()
    disk.has_greedy_neighbour = True
    store.truncate_from(1)
    assert store.end.index == 0


def test_a_no_op_finds_its_place_while_the_index_has_none() -> None:
    """A group whose disks are full must be able to elect a leader, whatever else they have lost."""
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, 300)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    disk.delete(f"m/index/{SIMULATED.index_segment_bytes:020d}")
    disk.capacity_bytes = disk._used_bytes()
    for term in range(2, 5):
        store = open_simulated(disk).store
        append_noop(store, term)
        sync(store)
        assert read_log(store) == [*numbered(300), *[(298 + t, t, b"") for t in range(2, term + 1)]]
        assert store.term_runs()[-1] == (298 + term, term)
        disk.kill()
        disk = disk.platter()
    disk.capacity_bytes *= 2
    store = open_simulated(disk).store
    append_numbered(store, 1, term=4)
    assert read_log(store)[-1] == numbered(1, term=4, first=303)[0]


def test_damage_is_repaired_while_the_index_has_no_space() -> None:
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, 300)
    sync(directory.store)
    position = directory.store.range_of(50, 51, 1).position
    directory.close(clean=True)
    disk.kill()
    twin_disk = SimDisk()
    twin_disk.restore(disk.snapshot())
    twin = open_simulated(twin_disk).store
    disk.delete(f"m/index/{0:020d}")
    disk.flip(data_path(position), position % SIMULATED.segment_bytes + 8, 1)
    disk.capacity_bytes = disk._used_bytes()
    store = open_simulated(disk).store
    assert repair_from(twin, store) == [(50, 51)]
    assert read_log(store) == numbered(300)
    disk.kill()
    store = open_simulated(disk).store
    assert not store.damaged
    assert read_log(store) == numbered(300)


def test_a_no_op_goes_on_where_the_file_was_lost_that_is_to_hold_the_first_unit() -> None:
    """It held nothing but the reserve."""
    disk = SimDisk()
    make_directory("/m", disk)
    store, _ = open_store("/m", CONFIG, disk)
    store.plan(np.array([HEADER_BYTES + 1]))  # and it is not appended
    store.close()
    disk.kill()
    for path in [path for path in disk.paths() if "/index/" in path]:
        disk.delete(path)
    usage = disk.usage("/")
    disk.capacity_bytes = usage.total_bytes - usage.free_bytes
    store, report = open_store("/m", CONFIG, disk)
    assert report.lines == ()
    assert noops_until_full(store) >= 85
    store.close()
