"""Damage at or below the durable point: kept damaged, refused, repaired from another's copy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from quorumlog.errors import DirectoryDamaged, IndexOutOfRange, ProtocolViolation, RangeDamaged
from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import DurableFile, DurablePoint
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import DamagedRange, Examination, LogPoint
from quorumlog.store.segment import PAGE_BYTES
from quorumlog.store.segments import INDEX_UNIT_BYTES
from quorumlog.store.state_files import DamagedRanges
from quorumlog.testing.disk import SimDisk
from tests.store.log_making import (
    SMALL,
    append_bodies,
    append_noop,
    append_numbered,
    body,
    copy_directory,
    new_store,
    numbered,
    open_store,
    read_log,
    repair_from,
    sync,
)
from tests.store.stopping_disk import Stopped, StoppingDisk
from tests.store.test_recovery import UnreadableDisk, data_file, flip, index_file, overwrite

ENTRY_BYTES = 248


def make_pair(path: Path, *, index_synced: bool = True, terms: bool = False) -> LedgerStore:
    """The same ten durable entries in PATH/m and PATH/twin: 0 .. 3 | 4 .. 7 | 8, 9. With `terms` entry
    4 is a no-op that opens term 2. Returns the twin, open."""
    for name in ("m", "twin"):
        store = new_store(str(path / name))
        append_numbered(store, 4)
        if terms:
            append_noop(store, 2)
        append_numbered(store, 5 if terms else 6, term=2 if terms else 1)
        sync(store)
        point = DurablePoint(store.end, store.end.position if index_synced else 0)
        store.close()
        durable = DurableFile.open(OsDisk(), str(path / name))
        durable.record_both_synced(point)
        durable.close()
    return open_store(str(path / "twin"))[0]


def files_of(path: Path) -> dict[str, bytes]:
    return {
        f"{file.parent.name}/{file.name}": file.read_bytes()
        for folder in ("data", "index")
        for file in (path / folder).iterdir()
    }


def point_behind(store: LedgerStore, index: int) -> LogPoint:
    """What an APPEND from `index` on tells of the entry before."""
    begins = store.range_of(index, index + 1, 1)
    return LogPoint(index - 1, store.id_at(index - 1).term, store.chain_at(index - 1), begins.position)


def indices(store: LedgerStore) -> list[tuple[int, int]]:
    return [(each.first_index, each.stop_index) for each in store.damaged]


# ---------------------------------------------------------------- at a start


@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 36, 40, 44])
def test_a_bad_header_below_the_durable_point_is_listed_alone_and_repaired(
    tmp_path: Path, at: int
) -> None:
    twin = make_pair(tmp_path, index_synced=False)
    path = tmp_path / "m"
    flip(data_file(path), ENTRY_BYTES + at)
    damaged = data_file(path).read_bytes()
    store, report = open_store(str(path))
    assert indices(store) == [(1, 2)]
    assert "entry 1 in data/" in report.lines[0]
    assert store.end == twin.end
    assert store.durable == twin.end
    with pytest.raises(RangeDamaged, match="entry 1"):
        store.range_of(1, 5, 10_000)
    assert store.range_of(0, 5, 10_000).stop_index == 1, "a read stops in front of the damage"
    assert store.read(store.range_of(2, 5, 10_000)).first_index == 2
    repair_from(twin, store)
    assert read_log(store) == numbered(10)
    assert files_of(path) == files_of(tmp_path / "twin")
    kept = next((path / "set-aside").iterdir())
    assert kept.read_bytes() == damaged[ENTRY_BYTES : 2 * ENTRY_BYTES]
    store.close()
    again, report = open_store(str(path))
    assert (again.damaged, report.lines) == ((), ())
    again.close()


def test_damage_where_the_index_is_gone_as_well_takes_no_good_entry_with_it(tmp_path: Path) -> None:
    """Units that are still there lead past it, but not to the first entry that is good."""
    twin = make_pair(tmp_path, index_synced=False)
    path = tmp_path / "m"
    flip(data_file(path), ENTRY_BYTES)
    overwrite(index_file(path), 0, bytes(8 * INDEX_UNIT_BYTES))
    store, _ = open_store(str(path))
    assert indices(store) == [(1, 2)]
    repair_from(twin, store)
    assert read_log(store) == numbered(10)
    store.close()
    twin.close()


def cut_file(file: Path, size_bytes: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size_bytes)


@pytest.mark.parametrize("index_synced", [True, False])
@pytest.mark.parametrize("terms", [True, False])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: data_file(path).unlink(), (0, 4)),
        (lambda path: data_file(path, 1024).unlink(), (4, 8)),
        (lambda path: cut_file(data_file(path, 1024), 700), (6, 8)),
        (lambda path: cut_file(data_file(path, 1024), 0), (4, 8)),
        (lambda path: data_file(path, 2048).unlink(), (8, 10)),
        (lambda path: cut_file(data_file(path, 2048), 0), (8, 10)),
        (lambda path: data_file(path, 1024).rename(data_file(path, 77)), (4, 8)),
    ],
)
def test_what_a_lost_segment_held_is_listed_and_repaired(
    tmp_path: Path,
    damage: Callable[[Path], None],
    expected: tuple[int, int],
    terms: bool,
    index_synced: bool,
) -> None:
    twin = make_pair(tmp_path, index_synced=index_synced, terms=terms)
    path = tmp_path / "m"
    damage(path)
    store, _ = open_store(str(path))
    first, stop = indices(store)[0]
    assert (first, stop) == expected or terms
    assert store.end == twin.end
    assert store.term_runs() == twin.term_runs()
    store.close()
    store, _ = open_store(str(path))  # the files have their full length by now: it must not forget
    assert indices(store)[0] == (first, stop)
    repair_from(twin, store)
    assert read_log(store) == read_log(twin)
    assert files_of(path) == files_of(tmp_path / "twin")
    store.close()
    assert open_store(str(path))[0].damaged == ()


def test_a_segment_that_is_too_long_loses_what_does_not_belong_and_keeps_it_aside(
    tmp_path: Path,
) -> None:
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 1024).write_bytes(data_file(path, 1024).read_bytes() + b"x" * 500)
    store, report = open_store(str(path))
    assert store.damaged == ()
    assert read_log(store) == read_log(twin)
    assert Path(report.set_aside).read_bytes() == b"x" * 500
    store.close()


def test_swapped_segments_are_repaired(tmp_path: Path) -> None:
    twin = make_pair(tmp_path, index_synced=False)
    path = tmp_path / "m"
    first, second = data_file(path).read_bytes(), data_file(path, 1024).read_bytes()
    data_file(path).write_bytes(second)
    data_file(path, 1024).write_bytes(first)
    store, _ = open_store(str(path))
    assert indices(store) == [(0, 8)]
    repair_from(twin, store)
    assert files_of(path) == files_of(tmp_path / "twin")
    store.close()


def test_a_bad_blank_record_between_good_neighbours_is_simply_written_again(tmp_path: Path) -> None:
    make_pair(tmp_path, index_synced=False).close()
    path = tmp_path / "m"
    whole = files_of(path)
    overwrite(data_file(path), 4 * ENTRY_BYTES, b"\0" * 8)
    store, report = open_store(str(path))
    assert store.damaged == ()
    assert "blank record" in report.lines[0]
    assert files_of(path) == whole
    store.close()


def test_a_page_that_the_disk_cannot_read_is_listed(tmp_path: Path) -> None:
    twin = make_pair(tmp_path, index_synced=False)
    disk = UnreadableDisk(f"/data/{1024:020d}")
    disk.unreadable = True
    store, report = open_store(str(tmp_path / "m"), disk=disk)
    assert indices(store) == [(4, 8)]
    assert "Input/output error" in report.lines[0]
    disk.unreadable = False  # the drive puts what is written elsewhere
    repair_from(twin, store)
    assert files_of(tmp_path / "m") == files_of(tmp_path / "twin")
    store.close()


def test_two_ranges_are_repaired_one_by_one(tmp_path: Path) -> None:
    twin = make_pair(tmp_path, index_synced=False)
    path = tmp_path / "m"
    flip(data_file(path), ENTRY_BYTES + 8)
    flip(data_file(path, 2048), 16)
    store, _ = open_store(str(path))
    assert indices(store) == [(1, 2), (8, 9)]
    assert repair_from(twin, store) == [(1, 2), (8, 9)]
    assert read_log(store) == numbered(10)
    store.close()


def test_damage_that_reaches_the_durable_end_ends_where_the_durable_point_says(tmp_path: Path) -> None:
    twin = make_pair(tmp_path, index_synced=False)
    path = tmp_path / "m"
    overwrite(data_file(path, 2048), 0, bytes(500))
    store, _ = open_store(str(path))
    assert indices(store) == [(8, 10)]
    assert store.end == twin.end
    append_numbered(store, 3, term=3)  # the log goes on behind it
    sync(store)
    store.close()
    store, _ = open_store(str(path))
    assert indices(store) == [(8, 10)]
    repair_from(twin, store)
    assert read_log(store) == numbered(10) + numbered(3, term=3, first=10)
    store.close()


def test_an_unreadable_list_of_ranges_makes_the_start_verify_the_whole_log(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 1024).unlink()
    open_store(str(path))[0].close()
    flip(data_file(path), ENTRY_BYTES + 100)  # a body, which a start does not look at otherwise
    flip(path / "damaged", 10)
    store, _ = open_store(str(path))
    assert indices(store) == [(1, 2), (4, 8)]
    repair_from(twin, store)
    assert files_of(path) == files_of(tmp_path / "twin")
    assert not (path / "damaged").exists()
    store.close()


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_every_step_of_a_start_that_makes_a_segment_again(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    source = tmp_path / "m"
    data_file(source, 1024).unlink()
    whole = StoppingDisk()
    path = copy_directory(str(source), str(tmp_path / "copy"))
    open_store(path, disk=whole)[0].close()
    for stop_at in range(len(whole.steps)):
        path = copy_directory(str(source), str(tmp_path / "copy"))
        with contextlib.suppress(Stopped):
            open_store(path, disk=StoppingDisk(stop_at))[0].close()
        store, _ = open_store(path)
        assert indices(store) == [(4, 8)], stop_at
        repair_from(twin, store)
        assert read_log(store) == numbered(10)
        store.close()


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_every_step_of_a_repair(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    source = tmp_path / "m"
    data_file(source, 1024).unlink()
    open_store(str(source))[0].close()
    stop_at = 0
    while True:
        disk = StoppingDisk()
        store, _ = open_store(copy_directory(str(source), str(tmp_path / "copy")), disk=disk)
        disk.stop_at = len(disk.steps) + stop_at
        try:
            repair_from(twin, store)
        except Stopped:
            store.close()
        else:
            break
        store, _ = open_store(str(tmp_path / "copy"))
        assert indices(store) in ([(4, 8)], [(6, 8)], []), stop_at
        repair_from(twin, store)
        assert read_log(store) == numbered(10)
        store.close()
        stop_at += 1
    assert stop_at > 5


# ---------------------------------------------------------------- while it runs


def look(store: LedgerStore, first_index: int, stop_index: int) -> Examination:
    found = store.examine(first_index, stop_index)
    store.settle(found)
    store.save_damaged()
    return found


@pytest.mark.parametrize("at", [0, 8, 16, 24, 36, 40, 48, 200])
def test_a_closer_look_lists_the_one_bad_entry(tmp_path: Path, at: int) -> None:
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    store, _ = open_store(str(path))
    flip(data_file(path, 1024), ENTRY_BYTES + at)  # entry 5
    look(store, 4, 8)
    assert indices(store) == [(5, 6)]
    store.close()
    store, _ = open_store(str(path))
    assert indices(store) == [(5, 6)]
    repair_from(twin, store)
    assert files_of(path) == files_of(tmp_path / "twin")
    store.close()


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 36, 40])
@pytest.mark.parametrize("index", [0, 4, 5])
def test_no_chain_is_read_that_its_entry_and_the_one_before_contradict(
    tmp_path: Path, index: int, at: int
) -> None:
    """Who compares logs, snapshots or archives by a chain would take a flipped bit for another log."""
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    store, _ = open_store(str(path))
    position = store.range_of(index, index + 1, 1).position
    flip(data_file(path, position // 1024 * 1024), position % 1024 + at)
    with pytest.raises(DirectoryDamaged):
        store.chain_at(index)
    assert store.chain_at(7) == twin.chain_at(7)
    look(store, index, index + 1)
    assert indices(store) == [(index, index + 1)]
    assert [store.chain_at(each) for each in range(10)] == [twin.chain_at(each) for each in range(10)]
    store.close()


@pytest.mark.parametrize("known", [4, 5, 6, 7])
@pytest.mark.parametrize("terms", [False, True])
def test_damage_that_runs_into_a_known_range_becomes_one_with_it(
    tmp_path: Path, known: int, terms: bool
) -> None:
    """The look at the entry in front goes to the next good one, and that lies behind the range."""
    twin = make_pair(tmp_path, terms=terms)
    path = tmp_path / "m"
    store, _ = open_store(str(path))
    first = store.range_of(known - 1, known, 1)
    flip(data_file(path, 1024), store.range_of(known, known + 1, 1).position - 1024 + 8)
    look(store, known, known + 1)
    assert indices(store) == [(known, known + 1)]
    flip(data_file(path, first.segment_position), first.position - first.segment_position + 47)
    found = store.settle(store.examine(known - 1, known))
    assert found == store.damaged
    assert indices(store) == [(known - 1, known + 1)]
    assert store.term_runs() == twin.term_runs()
    assert store.settle(store.examine(known - 1, known)) == ()
    store.save_damaged()
    store.close()
    store, _ = open_store(str(path))
    assert indices(store) == [(known - 1, known + 1)]
    repair_from(twin, store)
    assert files_of(path) == files_of(tmp_path / "twin")
    store.close()


def test_ranges_that_overlap_are_joined_whichever_way_they_do() -> None:
    def between(first: int, stop: int) -> DamagedRange:
        runs = tuple((i, i // 2) for i in range(first, stop) if i == first or i % 2 == 0)
        before, last = (LogPoint(i, i // 2, 7 * i, 100 * i) for i in (first - 1, stop - 1))
        return DamagedRange(before, last, runs, "data/0", f"from {first}")

    for parts, whole in (
        ([(4, 9), (7, 12)], [(4, 12)]),
        ([(7, 12), (4, 9)], [(4, 12)]),
        ([(4, 12), (6, 8)], [(4, 12)]),
        ([(6, 8), (4, 12)], [(4, 12)]),
        ([(4, 6), (8, 10), (5, 9)], [(4, 10)]),
        ([(4, 6), (4, 9)], [(4, 9)]),
        ([(4, 6), (6, 9)], [(4, 6), (6, 9)]),
    ):
        damaged = DamagedRanges(SimDisk(), "/m", ())
        for part in parts:
            damaged.add([between(*part)])
        ranges = [msgspec.structs.replace(each, problem="") for each in damaged.ranges]
        assert ranges == [msgspec.structs.replace(between(*each), problem="") for each in whole]


def test_a_closer_look_at_a_whole_log_finds_nothing(tmp_path: Path) -> None:
    make_pair(tmp_path, terms=True).close()
    store, _ = open_store(str(tmp_path / "m"))
    assert look(store, 0, 10)[:3] == ((), (), ())
    store.close()


def test_units_that_the_data_proves_wrong_are_written_again(tmp_path: Path) -> None:
    make_pair(tmp_path).close()
    path = tmp_path / "m"
    whole = files_of(path)
    store, _ = open_store(str(path))
    for offset in (0, 7, 15, 20, 31):
        flip(index_file(path), 5 * 32 + offset)
    look(store, 5, 6)
    assert store.damaged == ()
    assert files_of(path) == whole
    store.close()


def test_the_last_entry_is_known_without_its_unit(tmp_path: Path) -> None:
    make_pair(tmp_path).close()
    store, _ = open_store(str(tmp_path / "m"))
    flip(index_file(tmp_path / "m", 256), 32 + 24)
    assert store.id_at(9) == store.end.entry_id
    store.close()


def test_damage_that_was_cut_meanwhile_is_none(tmp_path: Path) -> None:
    make_pair(tmp_path).close()
    store, _ = open_store(str(tmp_path / "m"))
    flip(data_file(tmp_path / "m", 2048), 60)
    found = store.examine(8, 10)
    assert len(found.ranges) == 1
    store.truncate_from(8)
    assert store.settle(found) is None
    assert store.damaged == ()
    store.close()


def test_a_cut_that_takes_the_range_away_ends_the_damage(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 1024).unlink()
    store, _ = open_store(str(path))
    damaged = store.damaged[0]
    store.truncate_from(4)
    assert store.damaged == ()
    batch = twin.read(twin.range_of(4, 8, 10_000))
    with pytest.raises(IndexOutOfRange):
        store.write_piece(damaged, damaged.before, batch)
    append_numbered(store, 5, term=2)
    sync(store)
    store.close()
    store, _ = open_store(str(path))
    assert read_log(store) == numbered(4) + numbered(5, term=2, first=4)
    store.close()


@pytest.mark.parametrize("index", [5, 6, 7, 8])
@pytest.mark.parametrize("restart", [False, True])
def test_what_a_cut_leaves_of_a_range_is_repaired(tmp_path: Path, index: int, restart: bool) -> None:
    """Entries 4 .. 7 fill a segment and are lost; the log ends before `index` from now on."""
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 1024).unlink()
    store, _ = open_store(str(path))
    end = point_behind(twin, index)
    store.truncate_from(index, end)
    assert indices(store) == [(4, index)]
    assert (store.end.index, store.durable.index) == (index - 1, index - 1)
    append_numbered(store, 3, term=2)
    sync(store)
    if restart:
        store.close()
        store, _ = open_store(str(path))
        assert indices(store) == [(4, index)]
    repair_from(twin, store)
    assert read_log(store) == numbered(index) + numbered(3, term=2, first=index)
    store.close()


def test_a_cut_behind_a_range_asks_no_index_unit_where_it_ends(tmp_path: Path) -> None:
    """That unit is not restored while its entry is damaged: it may be zeros."""
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    flip(data_file(path), ENTRY_BYTES * 2 + 8)
    store, _ = open_store(str(path))
    store.settle(store.examine(2, 3))
    assert indices(store) == [(2, 3)]
    overwrite(index_file(path), 2 * 32, bytes(32))
    store.truncate_from(3, point_behind(twin, 3))
    append_numbered(store, 2, term=2)
    repair_from(twin, store)
    assert read_log(store) == numbered(3) + numbered(2, term=2, first=3)
    store.close()


def test_where_the_leaders_next_entry_begins_a_segment_the_range_ends_with_the_one_in_front(
    tmp_path: Path,
) -> None:
    """Entry 5 is so long on the leader that it begins the third segment; here it lies in the second."""
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 1024).unlink()
    store, _ = open_store(str(path))
    end = point_behind(twin, 5)
    store.truncate_from(5, LogPoint(4, end.term, end.chain, 2048))
    append_bodies(store, [bytes(900)], term=2)
    repair_from(twin, store)
    assert read_log(store)[:5] == numbered(5)
    assert store.range_of(5, 6, 1).position == 2048
    sync(store)
    store.close()
    store, report = open_store(str(path))
    assert (store.end.index, store.damaged, report.lines) == (5, (), ())
    assert read_log(store)[:5] == numbered(5)
    store.close()


def test_so_it_does_where_this_log_never_came_to_the_end_of_that_segment(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 2048).unlink()
    store, _ = open_store(str(path))
    assert (indices(store), store.end.position) == ([(8, 10)], 2048 + 2 * ENTRY_BYTES)
    end = point_behind(twin, 9)
    store.truncate_from(9, LogPoint(8, end.term, end.chain, 3072))
    append_bodies(store, [bytes(900)], term=2)
    repair_from(twin, store)
    assert read_log(store)[:9] == numbered(9)
    assert store.range_of(9, 10, 1).position == 3072
    sync(store)
    store.close()
    store, report = open_store(str(path))
    assert (store.end.index, store.damaged, report.lines) == (9, (), ())
    store.close()


ONE_SEGMENT = replace(SMALL, segment_bytes=1 << 20, index_segment_bytes=1 << 15)


@pytest.mark.parametrize("stop_index", [25, 60, 100])
def test_a_page_that_the_disk_cannot_read_is_replaced_wherever_a_range_or_a_cut_ends(
    stop_index: int,
) -> None:
    """A part of such a page cannot be written: inside of it a piece ends, or the log, or a cut."""
    disk = SimDisk()
    for name in ("/m", "/twin"):
        store = new_store(name, ONE_SEGMENT, disk)
        append_numbered(store, 100)
        sync(store)
        store.close()
    twin, _ = open_store("/twin", ONE_SEGMENT, disk)
    store, _ = open_store("/m", ONE_SEGMENT, disk)
    middle = store.range_of(stop_index - 1, stop_index, 1).position // PAGE_BYTES
    disk.unreadable.add((f"/m/data/{0:020d}", middle))
    store.settle(store.examine(stop_index - 1, stop_index))
    (damaged,) = store.damaged
    if damaged.first_index < stop_index < damaged.stop_index:
        store.truncate_from(stop_index, point_behind(twin, stop_index))
        assert store.end.index == stop_index - 1
    repair_from(twin, store, 600)
    assert read_log(store) == numbered(store.end.index + 1)
    append_numbered(store, 1, term=2)
    sync(store)
    store.close()
    store, _ = open_store("/m", ONE_SEGMENT, disk)
    assert store.damaged == ()
    store.close()


def test_an_entry_of_zeros_in_a_page_that_the_disk_cannot_read_is_damaged() -> None:
    """Its bytes would be right if what cannot be read were taken for zeros."""
    disk = SimDisk()
    for name in ("/m", "/twin"):
        store = new_store(name, ONE_SEGMENT, disk)
        append_bodies(store, [bytes(3000)] * 20)
        sync(store)
        store.close()
    twin, _ = open_store("/twin", ONE_SEGMENT, disk)
    store, _ = open_store("/m", ONE_SEGMENT, disk)
    entry = store.range_of(5, 6, 1)
    page = (entry.position + entry.size_bytes - 1) // PAGE_BYTES
    disk.lose_page(f"/m/data/{0:020d}", page * PAGE_BYTES)
    store.settle(store.examine(5, 6))
    (damaged,) = store.damaged
    assert damaged.first_index == 5
    repair_from(twin, store)
    assert read_log(store) == read_log(twin)


@pytest.mark.parametrize("index", [5, 60])
@pytest.mark.parametrize("place", ["data", "index"])
@pytest.mark.parametrize("is_in_range", [False, True])
def test_a_cut_goes_through_pages_that_the_disk_cannot_read(
    place: str, index: int, is_in_range: bool
) -> None:
    """Nobody has met them yet, up to the page in which the log ends."""
    disk = SimDisk()
    for name in ("/m", "/twin"):
        store = new_store(name, ONE_SEGMENT, disk)
        append_numbered(store, 400)
        sync(store)
        store.close()
    twin, _ = open_store("/twin", ONE_SEGMENT, disk)
    store, _ = open_store("/m", ONE_SEGMENT, disk)
    end = point_behind(twin, index)
    if is_in_range:
        disk.unreadable.add((f"/m/data/{0:020d}", end.position // PAGE_BYTES))
        store.settle(store.examine(index - 1, index + 1))
        assert store.damaged
    page = {"data": end.position // PAGE_BYTES + 1, "index": 0 if is_in_range else 1}[place]
    last = {"data": store.end.position, "index": store.end.index * INDEX_UNIT_BYTES}[place]
    pages = range(page, last // PAGE_BYTES + 1)
    disk.unreadable.update((f"/m/{place}/{0:020d}", page) for page in pages)
    store.truncate_from(index, end)
    assert store.end.index == index - 1
    append_numbered(store, 1, term=2)
    sync(store)
    store.settle(store.examine(0, store.end.index + 1))  # units that were lost are written again
    repair_from(twin, store)
    assert read_log(store) == numbered(index) + numbered(1, term=2, first=index)
    assert disk.unreadable == set()
    store.close()
    store, _ = open_store("/m", ONE_SEGMENT, disk)
    assert store.damaged == ()
    store.close()


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_every_step_of_a_cut_inside_a_range(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    source = tmp_path / "m"
    data_file(source, 1024).unlink()
    open_store(str(source))[0].close()
    end = point_behind(twin, 6)
    stop_at, is_cut = 0, True
    while is_cut:
        disk = StoppingDisk()
        store, _ = open_store(copy_directory(str(source), str(tmp_path / "copy")), disk=disk)
        disk.stop_at = len(disk.steps) + stop_at
        with contextlib.suppress(Stopped):
            store.truncate_from(6, end)
            is_cut = False
        store.close()
        store, _ = open_store(str(tmp_path / "copy"))
        assert (indices(store), store.end.index) in (([(4, 8)], 9), ([(4, 6)], 5)), stop_at
        repair_from(twin, store)
        assert read_log(store) == numbered(store.end.index + 1)
        store.close()
        stop_at += 1
    assert stop_at > 5


# ---------------------------------------------------------------- what another member sends


def test_entries_that_are_not_the_damaged_ones_are_refused(tmp_path: Path) -> None:
    twin = make_pair(tmp_path)
    path = tmp_path / "m"
    data_file(path, 1024).unlink()
    other = new_store(str(tmp_path / "other"))  # another body at index 6, all else alike
    append_bodies(other, [body(i) if i != 6 else body(66) for i in range(10)])
    store, _ = open_store(str(path))
    (damaged,) = store.damaged
    batch = other.read(other.range_of(4, 8, 10_000))
    with pytest.raises(ProtocolViolation, match="the chain of entries"):
        store.check_piece(damaged, batch)
    batch = twin.read(twin.range_of(4, 8, 10_000))
    batch.buffer[300] ^= 1
    with pytest.raises(ProtocolViolation, match="body_crc"):
        store.check_piece(damaged, batch)
    for first, stop in ((3, 4), (2, 3), (8, 9)):
        with pytest.raises(ProtocolViolation):
            store.check_piece(damaged, twin.read(twin.range_of(first, stop, 10_000)))
    with pytest.raises(ProtocolViolation, match="the chain of entries"):
        store.check_piece(damaged, other.read(other.range_of(7, 8, 10_000)))
    assert store.check_piece(damaged, twin.read(twin.range_of(5, 8, 10_000))).index == 4
    assert indices(store) == [(4, 8)]
    store.close()
    other.close()


class FullDisk(OsDisk):
    def make_directory(self, path: str) -> None:
        if path.endswith("/set-aside"):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().make_directory(path)


def test_lack_of_space_for_the_damaged_bytes_stops_no_repair(tmp_path: Path) -> None:
    twin = make_pair(tmp_path, index_synced=False)
    flip(data_file(tmp_path / "m"), ENTRY_BYTES + 8)
    store, _ = open_store(str(tmp_path / "m"), disk=FullDisk())
    repair_from(twin, store)
    assert read_log(store) == numbered(10)
    assert not (tmp_path / "m" / "set-aside").exists()
    store.close()


# ---------------------------------------------------------------- no space for the list of ranges


def filled_pair(count: int = 40) -> tuple[SimDisk, LedgerStore, LedgerStore]:
    """The same durable entries in /m and /twin, the disk full to the brim."""
    disk = SimDisk()
    for name in ("/m", "/twin"):
        store = new_store(name, SMALL, disk)
        append_numbered(store, count)
        sync(store)
        store.close()
        disk.sync_directory(name)
    disk.sync_directory("/")
    stores = open_store("/m", SMALL, disk)[0], open_store("/twin", SMALL, disk)[0]
    fill(disk)
    return disk, *stores


def fill(disk: SimDisk) -> None:
    usage = disk.usage("/")
    disk.capacity_bytes = usage.total_bytes - usage.free_bytes


def damage_header(disk: SimDisk, store: LedgerStore, index: int) -> None:
    entry = store.range_of(index, index + 1, 1)
    disk.flip(f"/m/data/{entry.segment_position:020d}", entry.position - entry.segment_position + 8, 1)


def test_on_a_full_disk_damage_is_known_in_memory_and_the_rest_is_served() -> None:
    disk, store, _ = filled_pair()
    damage_header(disk, store, 10)
    store.settle(store.examine(10, 11))
    assert store.save_damaged() is False
    assert "No space left" in store.damaged_problem
    with pytest.raises(RangeDamaged):
        store.range_of(10, 11, 1)
    assert store.read(store.range_of(11, 40, 10_000)).first_index == 11
    assert not disk.exists("/m/damaged")
    disk.capacity_bytes = 1 << 40
    assert store.save_damaged() is True
    assert store.damaged_problem == ""
    disk.kill()
    store, _ = open_store("/m", SMALL, disk)
    assert indices(store) == [(10, 11)]
    repair_from(open_store("/twin", SMALL, disk)[0], store)
    assert read_log(store) == numbered(40)


@pytest.mark.parametrize("appends", [0, 3])
@pytest.mark.parametrize("ending", ["kill", "close", "power loss"])
def test_a_restart_without_the_list_finds_the_damage_by_itself(ending: str, appends: int) -> None:
    """Also if the log went on meanwhile, whose index is synced with each segment that is full."""
    disk, store, _ = filled_pair()
    damage_header(disk, store, 10)
    store.settle(store.examine(10, 11))
    store.save_damaged()
    for _ in range(appends):
        append_noop(store, 2)
        sync(store)
    end = store.end
    if ending == "close":
        store.close()
    disk.lose_power(Random(1)) if ending == "power loss" else disk.kill()
    for _ in range(2):  # and again: this start finds no space either
        store, report = open_store("/m", SMALL, disk)
        assert (indices(store), store.end) == ([(10, 11)], end), report
        assert "No space left" in store.damaged_problem
        disk.kill()
    disk.capacity_bytes = 1 << 40
    store, _ = open_store("/m", SMALL, disk)
    assert (indices(store), store.damaged_problem) == ([(10, 11)], "")
    repair_from(open_store("/twin", SMALL, disk)[0], store)
    disk.kill()
    store, report = open_store("/m", SMALL, disk)
    assert (store.damaged, report.lines) == ((), ())


def test_a_list_that_a_cut_has_made_wrong_does_not_outlive_it_on_a_full_disk() -> None:
    """The entries that come in place of those that were cut are not damaged."""
    disk, store, _ = filled_pair()
    for index in (34, 37):
        damage_header(disk, store, index)
        store.settle(store.examine(index, index + 1))
    disk.capacity_bytes = 1 << 40
    assert store.save_damaged()
    fill(disk)
    disk.has_greedy_neighbour = True
    store.truncate_from(36)
    append_noop(store, 2)
    append_noop(store, 2)
    sync(store)
    assert indices(store) == [(34, 35)]
    assert not disk.exists("/m/damaged")
    disk.kill()
    store, _ = open_store("/m", SMALL, disk)
    assert (indices(store), store.end.index) == ([(34, 35)], 37)
    repair_from(open_store("/twin", SMALL, disk)[0], store)
    assert len(read_log(store)) == 38


def test_damage_is_repaired_on_a_full_disk() -> None:
    disk, store, twin = filled_pair()
    for index in (10, 20):
        damage_header(disk, store, index)
        store.settle(store.examine(index, index + 1))
    repair_from(twin, store)
    assert (read_log(store), store.damaged, store.damaged_problem) == (numbered(40), (), "")
    disk.kill()
    store, report = open_store("/m", SMALL, disk)
    assert (store.damaged, report.lines) == ((), ())


def test_ranges_above_the_durable_point_are_what_an_unfinished_cut_left(tmp_path: Path) -> None:
    make_pair(tmp_path).close()
    path = tmp_path / "m"
    data_file(path, 2048).unlink()
    store, _ = open_store(str(path))
    ranges = store.damaged
    store.truncate_from(8)
    store.close()
    DamagedRanges(OsDisk(), str(path), ranges).save()
    store, _ = open_store(str(path))
    assert (store.damaged, store.end.index) == ((), 7)
    store.close()
