"""Starts: what is kept, what is cut and kept aside, what is damage."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.config import MIB, StoreConfig
from quorumlog.errors import DirectoryDamaged
from quorumlog.store.disk import OsDisk, OsFile
from quorumlog.store.durable_file import DurableFile
from quorumlog.store.log_begin import search_term_runs
from tests.store.log_making import (
    SMALL,
    append_bodies,
    append_noop,
    append_numbered,
    body,
    copy_directory,
    make_directory,
    new_store,
    numbered,
    open_store,
    read_log,
    sync,
)
from tests.store.stopping_disk import Stopped, StoppingDisk


def data_file(path: Path, base: int = 0) -> Path:
    return path / "data" / f"{base:020d}"


def index_file(path: Path, base: int = 0) -> Path:
    return path / "index" / f"{base:020d}"


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def flip(file: Path, offset: int) -> None:
    overwrite(file, offset, bytes([file.read_bytes()[offset] ^ 0x10]))


def make_log(path: Path, durable: int, unsynced: int) -> None:
    """Entries of 248 bytes at 0, 248, 496, 744 | 1024, ... ; the last `unsynced` are not durable."""
    store = new_store(str(path))
    append_numbered(store, durable)
    sync(store)
    append_numbered(store, unsynced)
    store.close()


# ---------------------------------------------------------------- nothing wrong


@pytest.mark.parametrize(("durable", "unsynced"), [(0, 0), (9, 0), (0, 9), (3, 2), (8, 8)])
def test_whole_entries_above_the_durable_point_are_kept(
    tmp_path: Path, durable: int, unsynced: int
) -> None:
    make_log(tmp_path, durable, unsynced)
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(durable + unsynced)
    assert store.durable == store.end
    assert (report.lines, report.cut_bytes) == ((), 0)
    append_numbered(store, 5, term=2)
    assert read_log(store)[durable + unsynced :] == numbered(5, term=2, first=durable + unsynced)
    store.close()


def test_a_second_start_finds_the_first_ones_end(tmp_path: Path) -> None:
    make_log(tmp_path, 5, 5)
    for round_number in range(3):
        store, report = open_store(str(tmp_path))
        assert report.lines == ()
        append_numbered(store, 3)
        store.close()
        assert store.end.index == 9 + 3 * (round_number + 1)


def test_the_kept_tail_and_the_zeros_behind_it_are_synced_before_they_count(tmp_path: Path) -> None:
    make_log(tmp_path, 3, 3)
    disk = StoppingDisk()
    store, _ = open_store(str(tmp_path), disk=disk)
    store.close()
    steps = [(what, name.removeprefix(str(tmp_path) + "/")) for what, name in disk.steps]
    first_durable = steps.index(("write", "durable"))
    for name in (f"data/{0:020d}", f"data/{1024:020d}", f"index/{0:020d}"):
        assert ("write", name) in steps[:first_durable]
        last_change = max(i for i, s in enumerate(steps[:first_durable]) if s[1] == name)
        assert steps[last_change] == ("sync", name)
    assert ("set_size", f"data/{1024:020d}") in steps[:first_durable]
    for folder in ("data", "index"):  # a name may be in the cache only, too
        assert ("sync_directory", folder) in steps[: steps.index(("write", f"data/{0:020d}"))]


class CountingFile(OsFile):
    read_bytes = 0

    def pread_into(self, buffer: memoryview, position: int) -> int:
        CountingFile.read_bytes += len(buffer)
        return super().pread_into(buffer, position)


class CountingDisk(OsDisk):
    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        opened = super().open(path, writable=writable, create=create)
        return CountingFile(path, opened._descriptor, opened._times)


def test_empty_segments_behind_the_log_are_removed_and_not_read(tmp_path: Path) -> None:
    segment_bytes = 64 * MIB
    config = replace(SMALL, segment_bytes=segment_bytes, index_segment_bytes=MIB, reserve_step_bytes=MIB)
    store = new_store(str(tmp_path), config)
    append_numbered(store, 5)
    sync(store)
    store.close()
    for number in range(1, 5):
        with data_file(tmp_path, number * segment_bytes).open("xb") as file:
            file.truncate(segment_bytes)
    CountingFile.read_bytes = 0
    store, report = open_store(str(tmp_path), config, CountingDisk())
    assert read_log(store) == numbered(5)
    store.close()
    assert CountingFile.read_bytes <= 4 * MIB
    assert [file.name for file in (tmp_path / "data").iterdir()] == [f"{0:020d}"]
    assert report.lines == ()


# ---------------------------------------------------------------- torn tails


@pytest.mark.parametrize("at", [0, 4, 8, 36, 40, 47, 48, 247])
def test_a_torn_entry_above_the_durable_point_is_cut_and_kept_aside(tmp_path: Path, at: int) -> None:
    make_log(tmp_path, 5, 5)
    old = data_file(tmp_path, 1024).read_bytes()
    flip(data_file(tmp_path, 1024), 248 * 2 + at)  # entry 6
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(6)
    assert report.cut_bytes == (1024 - 2 * 248 - 24) + 2 * 248  # entry 7, the blank, entries 8 and 9
    assert "torn tail at 1520" in report.lines[0]
    first, second = (Path(name) for name in report.set_aside.split(", "))
    assert first.read_bytes()[248:] == old[3 * 248 : 1000]
    assert second.name == f"{2048:020d}.2"
    store.close()
    store, report = open_store(str(tmp_path))
    assert report.lines == ()
    assert read_log(store) == numbered(6)
    store.close()


def test_a_log_whose_first_entry_is_torn_is_cut_and_kept_aside(tmp_path: Path) -> None:
    make_log(tmp_path, 0, 3)
    flip(data_file(tmp_path, 0), 100)
    old = data_file(tmp_path, 0).read_bytes()
    store, report = open_store(str(tmp_path))
    assert (store.end.index, report.cut_bytes, report.cut_entries) == (-1, 3 * 248, 2)
    assert "torn tail at 0" in report.lines[0]
    assert Path(report.set_aside).read_bytes() == old[: 3 * 248]
    store.close()


def test_whole_entries_behind_a_torn_body_are_counted(tmp_path: Path) -> None:
    make_log(tmp_path, 5, 3)
    flip(data_file(tmp_path, 1024), 248 + 100)  # the body of entry 5
    store, report = open_store(str(tmp_path))
    assert store.end.index == 4
    assert report.cut_entries == 2
    store.close()


def test_an_unwritten_page_in_the_tail(tmp_path: Path) -> None:
    make_log(tmp_path, 4, 4)
    overwrite(data_file(tmp_path, 1024), 248, bytes(248))
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(5)
    assert report.cut_bytes == 3 * 248  # from entry 5, which is gone, to the end of entry 7
    append_numbered(store, 1, term=2)
    store.close()
    store, _ = open_store(str(tmp_path))
    assert read_log(store) == numbered(5) + numbered(1, term=2, first=5)
    store.close()


def test_a_blank_that_nothing_follows_is_taken_back(tmp_path: Path) -> None:
    """The roll reached the disk, the entry for which it was made did not."""
    make_log(tmp_path, 3, 0)
    store, _ = open_store(str(tmp_path))
    append_bodies(store, [bytes(500)])
    store.close()
    overwrite(data_file(tmp_path, 1024), 0, bytes(600))
    store, report = open_store(str(tmp_path))
    assert store.end.index == 2
    assert report.lines == ()
    append_bodies(store, [bytes(100)])
    assert store.end.position == 3 * 248 + 148
    store.close()
    store, _ = open_store(str(tmp_path))
    assert store.end.index == 3
    store.close()


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_every_step_of_a_start(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_log(source, 5, 5)
    flip(data_file(source, 2048), 100)  # entry 8 is torn
    whole = StoppingDisk()
    path = copy_directory(str(source), str(tmp_path / "m"))
    store, _ = open_store(path, disk=whole)
    store.close()
    for stop_at in range(len(whole.steps)):
        path = copy_directory(str(source), str(tmp_path / "m"))
        with contextlib.suppress(Stopped):  # behind the durable point nothing is left to stop
            open_store(path, disk=StoppingDisk(stop_at))[0].close()
        store, _ = open_store(path)
        assert read_log(store) == numbered(8), stop_at
        store.close()


# ---------------------------------------------------------------- the index


def test_an_index_that_was_never_synced_is_made_again(tmp_path: Path) -> None:
    make_log(tmp_path, 3, 0)
    data = index_file(tmp_path).read_bytes()
    overwrite(index_file(tmp_path), 32, bytes(32))
    store, report = open_store(str(tmp_path))
    assert "the index was rebuilt from entry 1 on" in report.lines
    assert index_file(tmp_path).read_bytes() == data
    assert read_log(store) == numbered(3)
    store.close()


def test_the_index_is_synced_before_a_segment_is_sealed(tmp_path: Path) -> None:
    make_directory(str(tmp_path))
    disk = StoppingDisk()
    store, _ = open_store(str(tmp_path), disk=disk)
    append_numbered(store, 3)
    disk.steps.clear()
    sync(store)
    assert not [name for what, name in disk.steps if what == "sync" and "/index/" in name]
    append_numbered(store, 3)
    disk.steps.clear()
    sync(store)
    synced = [name.rpartition("/")[0].rpartition("/")[2] for what, name in disk.steps if what == "sync"]
    assert synced.index("index") < synced.index("data")
    point = DurableFile.open(OsDisk(), str(tmp_path)).load()
    assert point is not None
    assert point.index_synced_position == point.point.position == store.end.position
    store.close()


def test_the_index_is_synced_after_so_many_bytes(tmp_path: Path) -> None:
    config = StoreConfig(
        segment_bytes=1 << 20, index_segment_bytes=3200, index_sync_bytes=2000, disk_full_ratio=1.0
    )
    store = new_store(str(tmp_path), config)
    synced = []
    for _ in range(10):
        append_numbered(store, 2)
        sync(store)
        synced.append(store._index_synced_position)
    assert synced == [0, 0, 0, 0, 2480, 2480, 2480, 2480, 2480, 4960]
    store.close()


@pytest.mark.parametrize("lost", ["all", "second", "short"])
def test_lost_index_files_are_made_again(tmp_path: Path, lost: str) -> None:
    make_log(tmp_path, 20, 2)
    old = {p.name: p.read_bytes() for p in (tmp_path / "index").iterdir()}
    for file in (tmp_path / "index").iterdir():
        if lost == "all" or (lost == "second" and file.name == f"{256:020d}"):
            file.unlink()
        if lost == "short" and file.name == f"{256:020d}":
            with file.open("r+b") as opened:
                opened.truncate(100)
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(22)
    assert any("index was rebuilt" in line for line in report.lines)
    for base in (0, 256, 512):
        name = f"{base:020d}"
        assert (tmp_path / "index" / name).read_bytes() == old[name], name
    store.close()


def test_an_index_that_is_made_again_names_the_place_of_each_entry() -> None:
    """For the mutants."""
    with tempfile.TemporaryDirectory() as path:
        test_lost_index_files_are_made_again(Path(path), "all")


def test_units_are_compared_with_the_data_at_the_edges_of_terms(tmp_path: Path) -> None:
    store = new_store(str(tmp_path))
    append_numbered(store, 3)
    append_noop(store, 2)
    append_numbered(store, 5, term=2)
    sync(store)
    store.close()
    store, _ = open_store(str(tmp_path))
    assert store.term_runs() == ((0, 1), (3, 2))
    units = index_file(tmp_path).read_bytes()
    overwrite(index_file(tmp_path), 2 * 32 + 24, (2).to_bytes(8, "big"))  # entry 2 claims term 2
    assert store.term_runs() == ((0, 1), (3, 2))
    assert index_file(tmp_path).read_bytes() == units, "the data says what the unit has to be"
    assert store.damaged == ()
    store.close()


def test_every_unit_that_is_read_is_checked(tmp_path: Path) -> None:
    make_log(tmp_path, 12, 0)
    store, _ = open_store(str(tmp_path))
    good = index_file(tmp_path).read_bytes()
    for offset, value in ((4, 1 << 40), (4, 249), (4, 1020), (12, 0), (12, 990), (16, 6), (24, 9)):
        width = 4 if offset == 12 else 8
        overwrite(index_file(tmp_path), 5 * 32 + offset, value.to_bytes(width, "big"))
        with pytest.raises(DirectoryDamaged) as raised:
            store.read(store.range_of(5, 8, 10_000))
        assert raised.value.index in (5, 6), offset
        assert "quorumlog verify" in str(raised.value)
        overwrite(index_file(tmp_path), 0, good)
    assert len(store.read(store.range_of(5, 8, 10_000)).sizes) == 3
    store.close()


# ---------------------------------------------------------------- damage


def test_a_read_of_a_changed_header_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path, 8, 0)
    store, _ = open_store(str(tmp_path))
    flip(data_file(tmp_path), 248 + 41)
    log_range = store.range_of(0, 3, 10_000)
    with pytest.raises(DirectoryDamaged, match="chain_crc does not match at index 1") as raised:
        store.read(log_range)
    assert raised.value.path == str(data_file(tmp_path))
    store.close()


def test_a_place_that_the_disk_cannot_read_is_named(tmp_path: Path) -> None:
    make_log(tmp_path, 6, 0)
    store, _ = open_store(str(tmp_path))
    store.close()
    disk = UnreadableDisk("/data/")
    store, _ = open_store(str(tmp_path), disk=disk)
    log_range = store.range_of(0, 6, 10_000)
    disk.unreadable = True
    with pytest.raises(DirectoryDamaged, match="Input/output error") as raised:
        store.read(log_range)
    assert (raised.value.path, raised.value.position) == (str(data_file(tmp_path)), 0)
    store.close()


class UnreadableDisk(OsDisk):
    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.unreadable = False

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        return UnreadableFile(self, super().open(path, writable=writable, create=create))


class UnreadableFile(OsFile):
    def __init__(self, disk: UnreadableDisk, opened: OsFile) -> None:
        super().__init__(opened.path, opened._descriptor, opened._times)
        self._disk = disk

    def _check(self) -> None:
        if self._disk.unreadable and self._disk.part in self.path:
            raise OSError(errno.EIO, "Input/output error")

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._check()
        return super().pread(size_bytes, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self._check()
        return super().pread_into(buffer, position)


# ---------------------------------------------------------------- files that do not belong


def test_unfinished_segments_above_the_durable_point_are_removed(tmp_path: Path) -> None:
    make_log(tmp_path, 5, 0)
    data_file(tmp_path, 2048).write_bytes(b"")
    data_file(tmp_path, 3072).write_bytes(bytes(1024))
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(5)
    assert any("unfinished creation" in line for line in report.lines)
    assert not data_file(tmp_path, 3072).exists()
    store.close()
    assert open_store(str(tmp_path))[1].lines == ()


def test_a_segment_of_another_length_above_the_durable_point_is_set_aside(tmp_path: Path) -> None:
    make_log(tmp_path, 5, 0)
    data_file(tmp_path, 2048).write_bytes(b"x" * 2000)
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(5)
    assert Path(report.set_aside).read_bytes() == b"x" * 2000
    store.close()


def test_a_tail_segment_whose_cut_was_interrupted_keeps_its_entries(tmp_path: Path) -> None:
    make_log(tmp_path, 3, 4)
    with data_file(tmp_path, 1024).open("r+b") as opened:
        opened.truncate(3 * 248)
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(7)
    assert "unfinished cut" in report.lines[0]
    store.close()


def test_strays_are_moved_out_of_the_way(tmp_path: Path) -> None:
    make_log(tmp_path, 5, 2)
    (tmp_path / "data" / "notes.txt").write_bytes(b"hello")
    (tmp_path / "data" / f"{77:020d}").write_bytes(b"x" * 1024)
    (tmp_path / "index" / ".hidden").mkdir()
    store, report = open_store(str(tmp_path))
    assert read_log(store) == numbered(7)
    assert len(report.lines) == 3
    assert (tmp_path / "set-aside" / "data-notes.txt.2").read_bytes() == b"hello"
    assert (tmp_path / "set-aside" / "index-.hidden.3").is_dir()
    store.close()


# ---------------------------------------------------------------- terms


def test_runs_of_terms_are_found_by_few_probes() -> None:
    firsts = {0: 1, 10: 2, 11: 5, 12: 6, 500_000: 7, 999_999: 9}
    probes = []

    def term_of(index: int, compare_with_data: bool) -> int:
        probes.append(index)
        return next(term for first, term in reversed(firsts.items()) if first <= index)

    assert search_term_runs(0, 1_000_000, term_of) == tuple(firsts.items())
    assert len(probes) < 200
    assert search_term_runs(5, 4, term_of) == ()
    assert search_term_runs(7, 7, term_of) == ((7, 1),)


@pytest.mark.parametrize("lengths", [[1], [1, 1], [3, 1, 1, 4, 2], [9, 9]])
def test_term_runs_after_a_start(tmp_path: Path, lengths: list[int]) -> None:
    store = new_store(str(tmp_path))
    expected = []
    for term, length in enumerate(lengths, start=1):
        expected.append((store.end.index + 1, term))
        append_bodies(store, [body(i, term, 50) for i in range(length)], term)
    assert store.term_runs() == tuple(expected)
    sync(store)
    store.close()
    store, _ = open_store(str(tmp_path))
    assert store.term_runs() == tuple(expected)
    store.close()


@pytest.mark.parametrize("is_durable", [True, False])
def test_an_entry_that_fits_into_no_frame_by_now_is_part_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    config = StoreConfig(segment_bytes=32 << 20, index_segment_bytes=4096, disk_full_ratio=1.0)
    with monkeypatch.context() as earlier_release:
        earlier_release.setattr("quorumlog.config.options.FRAME_LIMIT_BYTES", 32 << 20)
        store = new_store(str(tmp_path / "m"), config)
        append_numbered(store, 2)
        append_bodies(store, [body(2, 1, 18 << 20)])
        append_numbered(store, 2)
        sync(store)
        store.close()
    if not is_durable:
        DurableFile.create(OsDisk(), str(tmp_path / "m")).close()
    store, report = open_store(str(tmp_path / "m"), config)
    assert (store.end.index, store.damaged, report.cut_bytes) == (4, (), 0)
    found = store.examine(0, 5)
    assert (found.ranges, found.units, found.stop_index) == ((), (), 5)
    assert len(read_log(store)[2][2]) == 18 << 20
    store.close()


def test_a_length_that_is_not_that_of_the_entry_is_not_read_into_memory(tmp_path: Path) -> None:
    config = StoreConfig(segment_bytes=64 << 20, index_segment_bytes=4096, disk_full_ratio=1.0)
    store = new_store(str(tmp_path / "m"), config)
    append_numbered(store, 4)
    sync(store)
    overwrite(data_file(tmp_path / "m"), 248 + 4, b"\2")  # `size`: 32 MiB more
    sizes = []
    pread = store._data.pread
    store._data.pread = lambda size, position: sizes.append(size) or pread(size, position)  # type: ignore
    found = store.examine(0, 4)
    assert [(each.first_index, each.stop_index) for each in found.ranges] == [(1, 2)]
    assert max(sizes) <= 1 << 20 | 48
    store.close()
