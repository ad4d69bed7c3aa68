"""Pages that the disk cannot read, met by a start and by the tools.

The mutants (tests/mutants/store.py) run some of these as well.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from quorumlog.entry import HardState, Replica
from quorumlog.errors import ConfigError, DirectoryDamaged, StoreFailure
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import os_error
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.store.verification import inspect_directory, verify_directory
from quorumlog.testing.disk import PAGE_BYTES, SimDisk, SimFile
from tests.store.log_making import append_numbered, numbered, read_log, repair_from, sync
from tests.store.sim_logs import CONFIG, data_path, make_unreadable, open_simulated


def stopped(count: int, unsynced: int = 0) -> tuple[SimDisk, int, int]:
    """A disk, the durable position and the end of a member's log. With entries that are not durable the
    member was killed, otherwise it has stopped."""
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, count)
    sync(directory.store)
    durable = directory.store.durable
    directory.write_checkpoint(durable)
    append_numbered(directory.store, unsynced)
    end = directory.store.end
    if not unsynced:
        directory.close(clean=True)
    disk.kill()
    return disk, durable.position, end.position


INDEX_PAGES = {(f"m/index/{position:020d}", 0) for position in (0, PAGE_BYTES)}


def test_the_tools_go_on_behind_a_segment_whose_first_entry_nobody_can_name() -> None:
    disk, _, _ = stopped(300)
    disk.flip(data_path(2 * CONFIG.segment_bytes), 9, 4)
    disk.unreadable = INDEX_PAGES
    assert "index/0" in verify_directory(disk, "m").problem
    view = inspect_directory(disk, "m")
    assert [segment.first_index for segment in view.segments] == [0, 66, 198, 264]
    assert view.segments[1].last_term == -1


def test_what_is_listed_is_not_shown_again_because_nobody_can_name_its_first_entry() -> None:
    disk, _, _ = stopped(300)
    disk.delete(data_path(2 * CONFIG.segment_bytes))
    open_simulated(disk)
    disk.kill()
    disk.unreadable = INDEX_PAGES
    found = verify_directory(disk, "m")
    assert [str(each)[:18] for each in found.damaged] == ["entries 132 .. 197"]
    assert [each for each in found.damage if each.path.startswith("data")] == []


def problems_of(directory: MemberDirectory) -> str:
    return "; ".join(directory.problems())


def test_a_page_behind_the_end_is_written_again() -> None:
    for count in (0, 5, 20, 60):
        disk, _, end = stopped(count)
        page = end + -end % PAGE_BYTES
        if page % CONFIG.segment_bytes:
            make_unreadable(disk, page)
        directory = open_simulated(disk)
        assert read_log(directory.store) == numbered(count)
        said = f"{data_path(page)}: the page at {page}, after the end of the log"
        assert (said in problems_of(directory)) == bool(page % CONFIG.segment_bytes)
        assert directory.problems() == directory.report, "the log says the same"
        append_numbered(directory.store, 30)
        sync(directory.store)
        assert read_log(directory.store) == numbered(count + 30)
        disk.kill()
        assert open_simulated(disk).problems() == ()


def test_a_page_behind_the_end_is_shown_as_damage_and_ends_no_tool() -> None:
    disk, _, end = stopped(20)
    page = end + -end % PAGE_BYTES
    make_unreadable(disk, page)
    with DirectoryReader(disk, "m") as reader:
        assert (reader.ledger_end_index, reader.tail) == (19, "")
        (damage,) = reader.damage
    assert (damage.path, damage.position) == (data_path(page).removeprefix("m/"), page)
    assert "after the end of the log" in damage.problem


@pytest.mark.parametrize("path", [data_path(0), f"m/index/{0:020d}"])
def test_a_page_of_a_log_without_entries_is_shown_and_written_again(path: str) -> None:
    disk, _, _ = stopped(0)
    disk.unreadable.add((path, 0))
    assert path.removeprefix("m/") in verify_directory(disk, "m").problem
    directory = open_simulated(disk)
    assert path in directory.report[0]
    append_numbered(directory.store, 30)
    assert read_log(directory.store) == numbered(30)


@pytest.mark.parametrize("index_segment_pages", [1, 3, pytest.param(1024, marks=pytest.mark.long)])
def test_an_index_page_behind_the_end_is_written_again(index_segment_pages: int) -> None:
    """Wherever it lies in the reserve, whose end is inside a page, or behind that."""
    config = replace(CONFIG, index_segment_bytes=index_segment_pages * PAGE_BYTES)
    disk = SimDisk()
    directory = open_simulated(disk, config=config)
    append_numbered(directory.store, 20)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    whole = disk.snapshot()
    pages = [
        (path, page)
        for path in disk.paths()
        if path.startswith("m/index/")
        for page in range(min(disk.size_of(path) // PAGE_BYTES, 180))
    ]
    for path, page in pages:
        disk = SimDisk()
        disk.restore(whole)
        disk.unreadable = {(path, page)}
        found = verify_directory(disk, "m")
        store = open_simulated(disk, config=config).store
        assert read_log(store) == numbered(20)
        if not disk.unreadable:
            assert (path, found.ok) == (path, False)
            assert path.removeprefix("m/") in found.problem
        append_numbered(store, 30)
        sync(store)
        assert read_log(store) == numbered(50)
        disk.kill()
        assert open_simulated(disk, config=config).problems() == ()


def with_two_ranges_in_a_page(count: int) -> tuple[SimDisk, LedgerStore]:
    """A disk, on which entry 1 was found damaged before its page became unreadable, and its twin."""
    disk, _, _ = stopped(count)
    twin = SimDisk()
    twin.restore(disk.snapshot())
    disk.flip(data_path(0), 248 + 8, 4)
    store = open_simulated(disk).store
    store.settle(store.examine(0, 3))
    store.save_damaged()
    disk.kill()
    make_unreadable(disk, 0)
    return disk, open_simulated(twin).store


def test_a_start_gets_by_damaged_ranges_that_share_an_unreadable_page() -> None:
    disk, twin = with_two_ranges_in_a_page(5)
    store = open_simulated(disk).store
    assert [(each.first_index, each.stop_index) for each in store.damaged] == [(0, 1), (1, 2), (2, 5)]
    append_numbered(store, 10)
    sync(store)
    repair_from(twin, store)
    assert read_log(store) == numbered(15)
    disk.kill()
    assert read_log(open_simulated(disk).store) == numbered(15)


@pytest.mark.parametrize("is_cut", [False, True])
def test_ranges_that_share_an_unreadable_page_are_repaired_and_cut(is_cut: bool) -> None:
    disk, twin = with_two_ranges_in_a_page(30)
    disk.unreadable.clear()
    store = open_simulated(disk).store
    make_unreadable(disk, 0)
    store.settle(store.examine(5, 6))
    store.save_damaged()
    assert [(each.first_index, each.stop_index) for each in store.damaged] == [(1, 2), (2, 17)]
    if is_cut:
        store.truncate_from(4, twin.point_on_disk(3))
        assert [(each.first_index, each.stop_index) for each in store.damaged] == [
            (0, 1),
            (1, 2),
            (2, 4),
        ]
        append_numbered(store, 3)
        sync(store)
    else:
        last = store.damaged[-1]
        batch = twin.read(twin.range_of(last.first_index, last.stop_index, 600))
        store.write_piece(last, store.check_piece(last, batch), batch)
        assert [each.first_index for each in store.damaged][:2] == [0, 1], "they are in that page, too"
    repair_from(twin, store)
    assert read_log(store) == numbered(7 if is_cut else 30)
    disk.kill()
    assert read_log(open_simulated(disk).store) == numbered(7 if is_cut else 30)


def test_a_start_finds_the_entries_beside_a_known_range_whose_page_is_unreadable() -> None:
    disk, twin = with_two_ranges_in_a_page(5)
    make_readable = disk.unreadable.copy()
    disk.unreadable.clear()
    directory = open_simulated(disk)
    disk.unreadable |= make_readable
    directory.store.settle(directory.store.examine(3, 4))
    directory.store.save_damaged()
    assert [each.first_index for each in directory.store.damaged] == [1, 2]
    directory.close(clean=True)
    disk.kill()
    store = open_simulated(disk).store
    assert [each.first_index for each in store.damaged] == [0, 1, 2]
    repair_from(twin, store)
    assert read_log(store) == numbered(5)


@pytest.mark.parametrize("offset", [0, 1, PAGE_BYTES, 2 * PAGE_BYTES])
def test_a_page_of_the_unsynced_tail_tears_it_there(offset: int) -> None:
    disk, durable, end = stopped(20, 70)
    position = durable + -durable % PAGE_BYTES + offset
    assert durable < position < end
    make_unreadable(disk, position)
    with DirectoryReader(disk, "m") as reader:
        seen, tail = reader.end, reader.tail
        assert "cannot be read" in tail
    directory = open_simulated(disk)
    store = directory.store
    assert (store.end, store.damaged) == (seen, ())
    assert read_log(store) == numbered(store.end.index + 1)
    assert store.end.index >= 19
    assert store.end.position <= position - position % PAGE_BYTES
    assert "cannot be read" in " ".join(directory.report)
    append_numbered(store, 30)
    sync(store)
    disk.kill()
    assert read_log(open_simulated(disk).store) == numbered(store.end.index + 1)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_page_below_the_durable_point_is_damage(is_clean: bool) -> None:
    """Also the one in which the log ends, and in which only the end of the last body lies."""
    for count in (17, 20, 33, 34):
        disk, durable, _ = stopped(count, 0 if is_clean else 3)
        make_unreadable(disk, durable - 1)
        before = [i for i, _, _ in numbered(count) if (i + 1) * 248 <= durable - durable % PAGE_BYTES]
        with DirectoryReader(disk, "m") as reader:
            (damage,) = reader.damage
            assert (damage.index, damage.stop_index) == (len(before), count)
            assert "cannot be read" in damage.problem
            seen = reader.end
        store = open_simulated(disk).store
        assert (store.end, store.durable.index) == (seen, count - 1)
        (damaged,) = store.damaged
        assert (damaged.first_index, damaged.stop_index) == (len(before), count)
        append_numbered(store, 10)
        sync(store)


def test_a_look_at_what_a_long_read_has_met_finds_the_page_of_the_index() -> None:
    config = replace(CONFIG, segment_bytes=16 << 20, index_segment_bytes=1 << 20)
    disk = SimDisk()
    directory = open_simulated(disk, config=config)
    append_numbered(directory.store, 2000, size=4000)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    store = open_simulated(disk, config=config).store
    disk.lose_page(f"m/index/{0:020d}", 1000 * 32)
    with pytest.raises(DirectoryDamaged, match="cannot be read") as raised:
        store.range_of(0, 2000, 16 << 20)
    page = 1000 * 32 // PAGE_BYTES * PAGE_BYTES
    assert (raised.value.position, raised.value.index) == (page, page // 32)
    assert store.settle_now(raised.value)
    # A look is at so many bytes of the data; the rest of the page, zeros by now, is met by later reads.
    with pytest.raises(DirectoryDamaged, match="the index unit of entry") as raised:
        store.range_of(0, 2000, 16 << 20)
    assert store.settle_now(raised.value)
    assert store.range_of(0, 2000, 16 << 20).stop_index == 2000


def test_a_short_index_file_whose_last_page_is_unreadable_refuses_no_start() -> None:
    """As a start leaves it that dies inside its cut."""
    disk, _, _ = stopped(150)
    path = f"m/index/{PAGE_BYTES:020d}"
    disk.truncate_file(path, 22 * 32)
    disk.lose_page(path, 0)
    assert read_log(open_simulated(disk).store) == numbered(150)


def test_a_small_file_that_nothing_depends_on_counts_as_absent() -> None:
    name = "checkpoint"
    disk, _, _ = stopped(20)
    state = HardState(7, Replica("n0", "x"))
    directory = open_simulated(disk)
    directory.save_hard_state(state)
    directory.close(clean=True)
    disk.kill()
    disk.unreadable.add((f"m/{name}", 0))
    with DirectoryReader(disk, "m") as reader:
        assert [(damage.path, damage.position) for damage in reader.damage] == [(name, 0)]
        assert (reader.hard_state, reader.ledger_end_index) == (state, 19)
    directory = open_simulated(disk)
    assert (directory.hard_state, directory.renewed) == (state, "")
    assert f"m/{name} cannot be read" in problems_of(directory)
    assert directory.problems() == directory.report
    assert directory.committed_index == -1
    directory.write_checkpoint(directory.store.durable)
    directory.close(clean=True)
    disk.kill()
    assert open_simulated(disk).problems() == ()


def test_a_start_that_cannot_read_whose_directory_it_is_says_so() -> None:
    disk, _, _ = stopped(5)
    disk.unreadable.add(("m/member", 0))
    with pytest.raises(DirectoryDamaged, match=r"m/member cannot be used: .*Input/output error"):
        open_simulated(disk)


def test_no_tool_raises_an_error_of_the_disk_whatever_page_it_is() -> None:
    disk, _, _ = stopped(60)
    pages = [
        (path, page)
        for path in disk.paths()
        for page in range(-(-disk.size_of(path) // PAGE_BYTES))
        if path != "m/lock"
    ]
    said = 0
    for path, page in pages:
        disk.unreadable = {(path, page)}
        try:
            found = verify_directory(disk, "m")
            view = inspect_directory(disk, "m")
        except (ConfigError, StoreFailure) as error:
            assert path in str(error)
            continue
        if "/index/" not in path or path.endswith("0" * 20):  # the next one was reserved and is empty
            assert not found.ok, (path, page)
            assert {damage.path for damage in view.damage} == {path.removeprefix("m/")}, (path, page)
            assert "cannot be read" in found.problem
            said += 1
    assert said > 8


class FewFiles(SimDisk):
    """No more can be opened after so many."""

    files_left = 1 << 30

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> SimFile:
        self.files_left -= 1
        if self.files_left < 0:
            raise os_error(errno.EMFILE, path)
        return super().open(path, writable=writable, create=create)


@pytest.mark.parametrize(
    "look",
    [
        lambda disk: verify_directory(disk, "m"),
        lambda disk: inspect_directory(disk, "m"),
        open_simulated,
    ],
    ids=["verify", "inspect", "start"],
)
def test_no_descriptors_left_is_no_damage_whatever_was_opened_last(
    look: Callable[[SimDisk], object],
) -> None:
    contents = stopped(150)[0].snapshot()
    for files_left in range(100):
        disk = FewFiles()
        disk.restore(contents)
        disk.files_left = files_left
        try:
            look(disk)
        except (ConfigError, StoreFailure) as error:
            assert not isinstance(error, DirectoryDamaged)
            assert "Too many open files" in str(error)
            assert str(error).endswith("; raise the limit of open files")
            assert disk.exists("m/member")
        else:
            break
    assert 10 < files_left < 99
