"""SimDisk: each fault by itself, what a power loss may leave, and the production store on top of it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.config import StoreConfig
from quorumlog.entry import HardState, Replica
from quorumlog.store.disk import Disk
from quorumlog.store.member_directory import MemberDirectory, open_member_directory
from quorumlog.testing.disk import PAGE_BYTES, SECTOR_BYTES, Crashed, SimDisk, SimFile
from tests.store.log_making import append_numbered, numbered, read_log, sync

SEEDS = range(60)


def made(content: bytes = b"", path: str = "f") -> tuple[SimDisk, SimFile]:
    """A disk with one synced file, opened."""
    disk = SimDisk()
    disk.write_file(path, content)
    return disk, disk.open(path)


def outcomes(make: Callable[[], SimDisk]) -> set[tuple[tuple[str, bytes], ...]]:
    """The files that power losses of many seeds leave of the same disk."""
    left = set()
    for seed in SEEDS:
        disk = make()
        disk.lose_power(Random(seed))
        left.add(tuple(sorted(disk.snapshot().items())))
    return left


# ---------------------------------------------------------------- Disk


def test_writes_many_buffers_behind_each_other_and_reads_them_back() -> None:
    disk: Disk = SimDisk()
    file = disk.open("f", create=True)
    file.pwritev([b"ab", memoryview(b"cd"), bytearray(b"ef")], 3)
    assert file.pread(100, 0) == b"\0\0\0abcdef"  # shorter only at the end of the file
    target = bytearray(10)
    assert file.pread_into(memoryview(target), 3) == 6
    assert bytes(target) == b"abcdef\0\0\0\0"
    assert file.size() == disk.size_of("f") == 9
    file.set_size(5)
    file.set_size(7)
    assert file.pread(100, 0) == b"\0\0\0ab\0\0"
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


def test_names_follow_the_operating_system() -> None:
    disk = SimDisk()
    assert disk.list("none") == []
    disk.make_directory("a/b")
    disk.make_directory("a/b")
    disk.open("a/x", create=True).close()
    disk.open("a/b/y", create=True).close()
    assert disk.list(".") == ["a"]
    assert disk.list("a") == ["b", "x"]
    assert disk.paths() == ["a/b/y", "a/x"]
    disk.rename("a/x", "a/b/y")
    assert disk.list("a") == ["b"]
    disk.unlink("a/b/y")
    assert not disk.exists("a/b/y") and disk.exists("a/b")
    with pytest.raises(FileNotFoundError):
        disk.open("a/x")
    with pytest.raises(FileNotFoundError):
        disk.open("none/x", create=True)
    with pytest.raises(FileNotFoundError):
        disk.sync_directory("none")
    with pytest.raises(IsADirectoryError):
        disk.open("a")
    disk.write_file("f", b"")
    with pytest.raises(FileExistsError):
        disk.open("f", create=True)
    with pytest.raises(FileExistsError):
        disk.make_directory("f")
    with pytest.raises(NotADirectoryError):
        disk.make_directory("f/g")
    with pytest.raises(NotADirectoryError):
        disk.list("f")


def test_a_file_opened_read_only_refuses_changes() -> None:
    disk, _ = made(b"abc")
    file = disk.open("f", writable=False)
    changes: list[Callable[[], None]] = [
        lambda: file.pwritev([b"x"], 0),
        lambda: file.set_size(0),
        lambda: file.allocate(0, 1),
    ]
    for change in changes:
        with pytest.raises(OSError, match="Bad file descriptor"):
            change()
    assert disk.content("f") == b"abc"


def test_a_lock_is_held_by_one_until_released() -> None:
    disk = SimDisk()
    assert not disk.is_locked("lock")
    lock = disk.lock("lock")
    with pytest.raises(BlockingIOError):
        disk.lock("lock")
    assert disk.is_locked("lock") and disk.exists("lock")
    lock.release()
    assert not disk.is_locked("lock")
    disk.lock("lock")


# ---------------------------------------------------------------- space


def test_space_is_taken_by_what_is_written_or_allocated_and_given_back() -> None:
    disk = SimDisk(capacity_bytes=10 * PAGE_BYTES)

    def used() -> int:
        usage = disk.usage(".")
        assert usage.total_bytes == 10 * PAGE_BYTES
        return (usage.total_bytes - usage.free_bytes) // PAGE_BYTES

    file = disk.open("f", create=True)
    file.set_size(100 * PAGE_BYTES)
    assert used() == 0  # a hole
    file.pwritev([b"x"], 50 * PAGE_BYTES - 1)
    file.pwritev([b"xy"], 50 * PAGE_BYTES - 1)
    assert used() == 2
    file.allocate(49 * PAGE_BYTES, 3 * PAGE_BYTES)
    assert used() == 3
    file.set_size(50 * PAGE_BYTES)
    assert used() == 1
    disk.unlink("f")
    assert used() == 0


def test_a_page_that_is_lost_is_read_again_once_it_was_written_as_a_whole() -> None:
    disk = SimDisk()
    disk.write_file("/f", bytes(3 * PAGE_BYTES))
    file = disk.open("/f")
    disk.lose_page("/f", PAGE_BYTES + 7)
    assert file.pread(PAGE_BYTES, 0) == bytes(PAGE_BYTES)
    for size, position in ((1, PAGE_BYTES), (2, 2 * PAGE_BYTES - 1), (3 * PAGE_BYTES, 0)):
        with pytest.raises(OSError, match="Input/output error"):
            file.pread(size, position)
    with pytest.raises(OSError, match="Input/output error"):
        file.pwritev([b"part"], PAGE_BYTES + 1)
    disk.lose_power(Random(1))
    file = disk.open("/f")
    with pytest.raises(OSError, match="Input/output error"):
        file.pread(1, PAGE_BYTES)
    file.pwritev([bytes(PAGE_BYTES)], PAGE_BYTES)
    assert file.pread(1, PAGE_BYTES) == b"\0"


def test_a_full_disk_refuses_new_pages_and_takes_writes_into_those_it_has() -> None:
    disk = SimDisk(capacity_bytes=4 * PAGE_BYTES)
    file = disk.open("f", create=True)
    file.allocate(0, 3 * PAGE_BYTES)
    refusals: list[Callable[[], None]] = [
        lambda: file.allocate(3 * PAGE_BYTES, 2 * PAGE_BYTES),
        lambda: file.pwritev([bytes(2 * PAGE_BYTES)], 3 * PAGE_BYTES),
    ]
    for refused in refusals:
        with pytest.raises(OSError, match="No space left") as raised:
            refused()
        assert raised.value.errno == errno.ENOSPC
    assert file.size() == 3 * PAGE_BYTES
    file.pwritev([b"x" * 3 * PAGE_BYTES], 0)
    file.allocate(3 * PAGE_BYTES, PAGE_BYTES)


# ---------------------------------------------------------------- deaths


def test_a_kill_keeps_the_cache_and_ends_files_and_locks_of_the_process() -> None:
    disk, file = made(b"abc")
    lock = disk.lock("lock")
    file.pwritev([b"x"], 0)
    disk.kill()
    for call in (file.size, file.sync, file.close, lock.release, lambda: file.pread(1, 0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()
    assert disk.content("f") == b"xbc"
    assert not disk.is_locked("lock")
    assert disk.open("f").pread(3, 0) == b"xbc"


def test_a_power_loss_keeps_what_was_synced_under_a_synced_name() -> None:
    for seed in SEEDS:
        disk = SimDisk()
        disk.make_directory("m/data")
        disk.sync_directory(".")
        disk.sync_directory("m")
        file = disk.open("m/data/f", create=True)
        file.pwritev([b"abc"], PAGE_BYTES)
        file.sync()
        assert disk.is_synced("m/data/f", 0, PAGE_BYTES + 3)
        assert not disk.is_name_synced("m/data/f")
        disk.sync_directory("m/data")
        assert disk.is_name_synced("m/data/f")
        lock = disk.lock("m/lock")
        disk.lose_power(Random(seed))
        assert disk.content("m/data/f") == bytes(PAGE_BYTES) + b"abc"
        for call in (file.size, lock.release):
            with pytest.raises(OSError, match="Bad file descriptor"):
                call()


def test_unsynced_pages_survive_each_by_itself_and_all_or_none_of_them_too() -> None:
    survivors: list[int] = []
    for seed in range(200):
        disk, file = made(bytes(20 * PAGE_BYTES))
        for page in range(20):
            file.pwritev([b"x" * PAGE_BYTES], page * PAGE_BYTES)
        assert not disk.is_synced("f", 0, 1)
        disk.lose_power(Random(seed))
        content = disk.content("f")
        survivors.append(
            sum(content[page * PAGE_BYTES :][:PAGE_BYTES].count(b"x") > 0 for page in range(20))
        )
    assert {0, 20} <= set(survivors)
    assert any(3 < count < 17 for count in survivors)


def test_a_page_may_be_torn_at_the_boundaries_of_sectors_and_nowhere_else() -> None:
    torn = 0
    for seed in range(300):
        disk, file = made(b"o" * PAGE_BYTES)
        file.pwritev([b"n" * PAGE_BYTES], 0)
        disk.lose_power(Random(seed))
        content = disk.content("f")
        sectors = [content[start : start + SECTOR_BYTES] for start in range(0, PAGE_BYTES, SECTOR_BYTES)]
        assert all(sector in (b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES) for sector in sectors)
        torn += len(set(sectors)) == 2
    assert 0 < torn < 60


def test_an_unsynced_size_is_the_old_or_the_new_one() -> None:
    def cut() -> SimDisk:
        disk, file = made(b"abcdef")
        file.set_size(2)
        return disk

    def grown() -> SimDisk:
        disk, file = made(b"abcdef")
        file.set_size(8)
        return disk

    # The cut page was not synced: where the size is the old one its end may have come as zeros.
    assert {dict(files)["f"] for files in outcomes(cut)} == {b"abcdef", b"ab", b"ab\0\0\0\0"}
    assert {dict(files)["f"] for files in outcomes(grown)} == {b"abcdef", b"abcdef\0\0"}


def test_a_cut_and_regrown_file_has_its_old_bytes_until_it_is_synced() -> None:
    def changed(synced: bool) -> SimDisk:
        disk, file = made(b"a" * PAGE_BYTES + b"b" * PAGE_BYTES)
        file.set_size(PAGE_BYTES)
        file.set_size(2 * PAGE_BYTES)
        if synced:
            file.sync()
        return disk

    ends = {dict(files)["f"][-1:] for files in outcomes(lambda: changed(synced=False))}
    assert ends == {b"b", b"\0"}
    ends = {dict(files)["f"][-1:] for files in outcomes(lambda: changed(synced=True))}
    assert ends == {b"\0"}


def test_an_unsynced_creation_or_removal_survives_or_does_not() -> None:
    def make() -> SimDisk:
        disk, _ = made(b"old", "removed")
        file = disk.open("created", create=True)
        file.pwritev([b"new"], 0)
        file.sync()
        disk.unlink("removed")
        return disk

    created, removed = ("created", b"new"), ("removed", b"old")
    assert outcomes(make) == {(), (created,), (removed,), (created, removed)}


def test_a_rename_leaves_the_old_or_the_new_file_and_never_none() -> None:
    def make() -> SimDisk:
        disk, _ = made(b"old")
        disk.write_file("tmp", b"new")
        disk.rename("tmp", "f")
        return disk

    assert outcomes(make) == {(("f", b"old"), ("tmp", b"new")), (("f", b"new"),)}

    def synced() -> SimDisk:
        disk = make()
        assert not disk.is_name_synced("f")
        disk.sync_directory(".")
        return disk

    assert outcomes(synced) == {(("f", b"new"),)}


def test_a_file_moved_to_another_directory_twice_is_never_lost() -> None:
    def make() -> SimDisk:
        disk = SimDisk()
        disk.write_file("a/f", b"first")
        disk.write_file("b/f", b"")
        disk.rename("a/f", "b/g")
        disk.open("a/f", create=True)
        disk.rename("b/g", "b/f")
        return disk

    left = {tuple(content for _, content in files).count(b"first") for files in outcomes(make)}
    assert left == {1}


def test_a_file_removed_and_made_again_may_be_the_old_one_the_new_one_or_none() -> None:
    def make() -> SimDisk:
        disk, _ = made(b"old")
        disk.unlink("f")
        disk.open("f", create=True)
        return disk

    assert outcomes(make) == {(), (("f", b"old"),), (("f", b""),)}


def test_a_file_in_a_directory_that_is_lost_is_lost() -> None:
    def make(synced: bool) -> SimDisk:
        disk = SimDisk()
        disk.make_directory("a/b")
        file = disk.open("a/b/f", create=True)
        file.sync()
        disk.sync_directory("a/b")
        disk.sync_directory("a")
        assert not disk.is_name_synced("a/b/f")
        if synced:
            disk.sync_directory(".")
        return disk

    assert outcomes(lambda: make(synced=False)) == {(), (("a/b/f", b""),)}
    assert outcomes(lambda: make(synced=True)) == {(("a/b/f", b""),)}


def test_a_failed_sync_is_told_once_and_its_bytes_never_reach_the_platter() -> None:
    for seed in SEEDS:
        disk, file = made(b"a" * 2 * PAGE_BYTES, "data/0")
        disk.write_file("other", b"")
        disk.fail_next_sync("data/")
        file.pwritev([b"b" * 2 * PAGE_BYTES], 0)
        disk.open("other").sync()
        with pytest.raises(OSError, match="Input/output error") as raised:
            file.sync()
        assert raised.value.errno == errno.EIO
        file.sync()
        file.pwritev([b"c"], 0)  # brings its page, with what else is on it
        file.sync()
        assert file.pread(2 * PAGE_BYTES, 0) == b"c" + b"b" * (2 * PAGE_BYTES - 1)
        assert disk.is_synced("data/0", 0, PAGE_BYTES)
        assert not disk.is_synced("data/0", 0, PAGE_BYTES + 1)
        disk.lose_power(Random(seed))
        assert disk.content("data/0") == b"c" + b"b" * (PAGE_BYTES - 1) + b"a" * PAGE_BYTES


@pytest.mark.parametrize("cut", [False, True])
def test_cutting_the_file_gets_rid_of_the_old_bytes_under_a_failed_sync(cut: bool) -> None:
    disk, file = made(b"a" * PAGE_BYTES)
    if cut:
        file.set_size(0)
        file.set_size(PAGE_BYTES)
    else:
        file.pwritev([bytes(PAGE_BYTES)], 0)
    disk.fail_next_sync("f")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    assert disk.content("f") == bytes(PAGE_BYTES)
    assert disk.platter().content("f") == b"a" * PAGE_BYTES
    file.set_size(0)
    file.set_size(PAGE_BYTES)
    file.sync()
    assert disk.platter().content("f") == bytes(PAGE_BYTES)


def test_cutting_the_file_gets_rid_of_bytes_that_a_power_loss_brought_back() -> None:
    brought_back = 0
    for seed in SEEDS:
        disk, file = made(b"a" * PAGE_BYTES)
        for _ in range(2):
            file.set_size(0)
            file.set_size(PAGE_BYTES)
            disk.lose_power(Random(seed))
            file = disk.open("f")
            brought_back += disk.content("f") != bytes(PAGE_BYTES)
        file.set_size(0)
        file.set_size(PAGE_BYTES)
        file.sync()
        assert disk.platter().content("f") == bytes(PAGE_BYTES)
    assert brought_back


def test_a_process_crashes_at_the_change_that_the_countdown_names_and_changes_nothing_more() -> None:
    def work(disk: SimDisk, done: list[str]) -> None:
        disk.make_directory("m")
        done.append("make_directory")
        disk.make_directory("m")  # makes nothing
        file = disk.open("m/a", create=True)
        done.append("create")
        file.allocate(0, 10)
        done.append("allocate")
        file.pwritev([b"x"], 0)
        done.append("write")
        file.set_size(20)
        done.append("set_size")
        file.sync()
        done.append("sync")
        disk.rename("m/a", "m/b")
        done.append("rename")
        disk.sync_directory("m")
        done.append("sync_directory")
        disk.unlink("m/b")
        done.append("unlink")

    whole: list[str] = []
    work(SimDisk(), whole)
    for countdown in range(1, len(whole) + 1):
        disk, done = SimDisk(), list[str]()
        disk.crash_countdown = countdown
        with pytest.raises(Crashed):
            work(disk, done)
        assert done == whole[: countdown - 1]
        reached = disk.snapshot()
        with pytest.raises(Crashed):
            disk.open("late", create=True)
        assert disk.snapshot() == reached
        disk.kill()
        disk.open("late", create=True)


def test_a_write_that_crashes_leaves_a_prefix_in_the_cache() -> None:
    lengths = set()
    for seed in SEEDS:
        disk, file = made()
        disk.crash_countdown, disk.crash_random = 1, Random(seed)
        for _ in range(2):
            with pytest.raises(Crashed):
                file.pwritev([b"abc", b"def"], 0)
        lengths.add(len(disk.content("f")))
        assert b"abcdef".startswith(disk.content("f"))
    assert lengths == set(range(7))


# ---------------------------------------------------------------- damage


def test_damage_is_on_the_cache_and_on_the_platter_and_makes_nothing_dirty() -> None:
    disk = SimDisk()
    disk.write_file("m/a", b"abc" + bytes(PAGE_BYTES) + b"def")
    disk.flip("m/a", 1, 0x01)
    assert disk.content("m/a")[:3] == b"acc"
    disk.zero_page("m/a", 2)
    disk.truncate_file("m/a", PAGE_BYTES + 4)
    disk.write_file("m/b", b"")
    disk.delete("m/b")
    expected = bytes(PAGE_BYTES + 3) + b"d"
    assert disk.snapshot() == disk.platter().snapshot() == {"m/a": expected}
    disk.lose_power(Random(1))
    assert disk.snapshot() == {"m/a": expected}


def test_damage_leaves_unsynced_bytes_unsynced() -> None:
    disk, file = made(b"abc")
    file.pwritev([b"x"], 0)
    disk.flip("f", 2, 0xFF)
    assert disk.content("f") == b"xb" + bytes([ord("c") ^ 0xFF])
    assert disk.platter().content("f") == b"ab" + bytes([ord("c") ^ 0xFF])


def test_an_unreadable_page_is_readable_once_it_is_written_or_its_file_replaced() -> None:
    disk, file = made(b"a" * 3 * PAGE_BYTES)
    disk.unreadable.add(("f", 1))
    for size_bytes, position in ((1, PAGE_BYTES), (2, PAGE_BYTES - 1), (1, 2 * PAGE_BYTES - 1)):
        with pytest.raises(OSError, match="Input/output error"):
            file.pread(size_bytes, position)
    with pytest.raises(OSError, match="Input/output error"):
        file.pread_into(memoryview(bytearray(9000)), 0)
    assert file.pread(PAGE_BYTES, 0) == file.pread(PAGE_BYTES, 2 * PAGE_BYTES) == b"a" * PAGE_BYTES
    with pytest.raises(OSError, match="Input/output error"):
        file.pwritev([b"b"], PAGE_BYTES)  # a part of a page: the rest would have to be read
    file.pwritev([b"b" * (PAGE_BYTES + 1)], PAGE_BYTES)
    assert file.pread(2, 2 * PAGE_BYTES - 1) == b"bb"
    disk.unreadable.add(("f", 0))
    disk.write_file("tmp", b"new")
    disk.rename("tmp", "f")
    assert disk.open("f").pread(3, 0) == b"new"
    disk.unreadable.add(("f", 0))
    disk.rename("f", "moved")
    with pytest.raises(OSError, match="Input/output error"):
        disk.open("moved").pread(1, 0)


def test_an_older_copy_is_put_back_synced_and_a_wiped_directory_is_empty() -> None:
    disk = SimDisk()
    disk.write_file("m/data/a", b"old")
    copy = disk.snapshot()
    disk.open("m/data/a").pwritev([b"new"], 0)
    disk.open("m/data/b", create=True)
    disk.restore(copy)
    assert disk.snapshot() == disk.platter().snapshot() == {"m/data/a": b"old"}
    disk.write_file("mm", b"")
    disk.remove_tree("m")
    disk.lose_power(Random(0))
    assert disk.list(".") == ["mm"]


# ---------------------------------------------------------------- what a power loss may leave

LIMIT = 5 * PAGE_BYTES
WRITE = st.tuples(st.just("write"), st.integers(0, LIMIT), st.integers(1, 2 * PAGE_BYTES))
SIZE = st.tuples(st.just("size"), st.integers(0, LIMIT), st.just(0))
SYNC = st.tuples(st.just("sync"), st.just(0), st.just(0))
LOSS = st.tuples(st.just("power"), st.integers(0, 1000), st.just(0))


@given(st.lists(st.one_of(WRITE, WRITE, SIZE, SYNC, LOSS), max_size=30), st.integers(0, 1000))
def test_synced_pages_stay_and_every_other_sector_is_old_or_new(
    steps: list[tuple[str, int, int]], last_seed: int
) -> None:
    disk, file = made()
    old = new = b""
    touched: set[int] = set()

    def touch(position: int, stop_position: int) -> None:
        touched.update(range(position // PAGE_BYTES, -(-stop_position // PAGE_BYTES)))

    for number, (step, argument, length) in enumerate([*steps, ("power", last_seed, 0)]):
        if step == "write":
            data = bytes([number + 1]) * length
            new = new[:argument].ljust(argument, b"\0") + data + new[argument + length :]
            touch(argument, argument + length)
            file.pwritev([data], argument)
        elif step == "size":
            touch(argument, max(argument, len(old), len(new)))
            new = new[:argument].ljust(argument, b"\0")
            file.set_size(argument)
        elif step == "sync":
            file.sync()
            old, touched = new, set()
        else:
            assert disk.content("f") == new
            assert disk.platter().content("f") == old
            disk.lose_power(Random(argument))
            left = disk.content("f")
            assert len(left) in (len(old), len(new))
            for start in range(0, len(left), SECTOR_BYTES):
                stop = min(start + SECTOR_BYTES, len(left))
                allowed = [old[start:stop].ljust(stop - start, b"\0")]
                if start // PAGE_BYTES in touched:
                    allowed.append(new[start:stop].ljust(stop - start, b"\0"))
                assert left[start:stop] in allowed, (start, touched)
            old = new = left
            touched = set()
            file = disk.open("f")


# ---------------------------------------------------------------- the production store on it

CONFIG = StoreConfig(
    segment_bytes=1024, index_segment_bytes=256, reserve_step_bytes=512, disk_full_ratio=1.0
)


def opened(disk: SimDisk) -> MemberDirectory:
    return open_member_directory(
        disk, "m", group="g", member_id="n1", config=CONFIG, group_size=3, draw_id=lambda: "d1"
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_member_keeps_every_durable_entry_and_its_vote_through_power_losses(seed: int) -> None:
    random = Random(seed)
    disk = SimDisk()
    directory = opened(disk)
    durable, state = 0, HardState(1, None)
    directory.save_hard_state(state)
    for run in range(8):
        asked = HardState(run + 2, Replica(f"n{random.randint(1, 3)}", "d1"))
        disk.crash_countdown = random.choice([None, random.randint(1, 60)])
        disk.crash_random = random
        with contextlib.suppress(Crashed):
            for _ in range(random.randint(1, 6)):
                append_numbered(directory.store, random.randint(1, 4))
                if random.random() < 0.7:
                    sync(directory.store)
                    durable = directory.store.durable.index + 1
            directory.save_hard_state(asked)
            state = asked
        if random.random() < 0.5:
            disk.kill()
        else:
            disk.lose_power(random)
        directory = opened(disk)
        log = read_log(directory.store)
        assert log == numbered(len(log))
        assert len(log) >= durable
        assert directory.renewed == ""
        assert directory.hard_state in (state, asked)
        state, durable = directory.hard_state, len(log)


@pytest.mark.parametrize("seed", range(40))
def test_a_directory_whose_creation_lost_power_is_made_whole_by_the_next_start(seed: int) -> None:
    random = Random(seed)
    disk = SimDisk()
    disk.crash_countdown, disk.crash_random = random.randint(1, 45), random
    with contextlib.suppress(Crashed):
        opened(disk)
    disk.lose_power(random)
    directory = opened(disk)
    directory.save_hard_state(HardState(1, None))
    append_numbered(directory.store, 3)
    sync(directory.store)
    disk.lose_power(random)
    assert read_log(opened(disk).store) == numbered(3)
