"""A log that loses its first entries: while it runs, killed or without power at any step, at a start."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import pytest

from quorumlog.entry import HardState
from quorumlog.errors import DirectoryDamaged, DiskFull, IndexOutOfRange
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.durable_file import read_durable_point
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LOG_ORIGIN, LogPoint, LogStart
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.state_files import (
    START_NAME,
    VERSION_WITH_START,
    good_start_slots,
    load_checkpoint,
    load_member,
    load_start,
    save_member,
    save_start,
)
from quorumlog.store.verification import verify_directory
from quorumlog.testing.disk import PAGE_BYTES, SimDisk
from tests.store.log_making import append_noop, append_numbered, numbered, read_log, repair_from, sync
from tests.store.losing_disk import LosingDisk
from tests.store.made_logs import SMALL, flip, open_small, opened
from tests.store.sim_logs import open_simulated
from tests.store.stopping_disk import Stopped, StoppingDisk

os_disk = OsDisk()
COUNT = 23
"""Entries of 248 bytes, four in a segment of 1024; ten units in an index segment of 320."""


def start_at(store: LedgerStore, index: int) -> LogStart:
    """The start of a log whose first entry is this one, which begins a segment."""
    position = index // 4 * SMALL.segment_bytes
    assert index % 4 == 0
    point = store.point_on_disk(index - 1)
    return LogStart(msgspec.structs.replace(point, position=position), b"state before %d" % index)


def drop(directory: MemberDirectory, index: int) -> None:
    start = start_at(directory.store, index)
    directory.save_start(start)
    directory.store.drop_before(start)()


def filled(path: Path, disk: Disk | None = None, count: int = COUNT) -> MemberDirectory:
    directory = open_small(path, disk=disk)
    directory.save_hard_state(HardState(99, None))
    append_numbered(directory.store, count)
    sync(directory.store)
    return directory


def segments(disk: Disk, path: Path) -> list[list[int]]:
    return [[int(name) for name in disk.list(f"{path}/{folder}")] for folder in ("data", "index")]


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "real" else MemoryDisk()


# ---------------------------------------------------------------- while it runs


def test_what_lies_below_is_gone_and_the_rest_is_as_it_was(tmp_path: Path, disk: Disk) -> None:
    """The term in front of the first entry outlives a restart: DLedger forgets it (W12)."""
    path = tmp_path / "n0"
    directory = filled(path, disk)
    store = directory.store
    kept = store.range_of(12, 14, 1000)
    gone = store.range_of(4, 6, 1000)
    before = store.truncations
    start = start_at(store, 12)
    directory.save_start(start)
    work = store.drop_before(start)
    assert (store.begin, store.start) == (start.point, start)
    assert store.truncations == before + 1
    with pytest.raises(IndexOutOfRange) as refused:
        store.read(gone)
    assert refused.value.ledger_begin_index == 12
    for index in (4, 11):
        with pytest.raises(IndexOutOfRange, match=r"the log is 12 \.\. 22") as refused:
            store.range_of(index, index + 1, 1)
        assert refused.value.ledger_begin_index == 12
    work()
    assert segments(disk, path) == [[3072, 4096, 5120, 6144], [320, 640, 960, 1280]]
    assert store.read(kept).count == 2
    assert store.id_at(11).term == 1 and store.chain_at(11) == start.point.chain
    assert read_log(store) == numbered(11, first=12)
    assert store.term_runs() == ((12, 1),)
    drop(directory, 20)
    store.truncate_from(21)
    append_numbered(store, 3, term=2)
    sync(store)
    expected = numbered(1, first=20) + numbered(3, term=2, first=21)
    assert read_log(store) == expected
    directory.close(clean=True)

    directory = open_small(path, disk=disk)
    assert directory.report == () or all("open to other" in line for line in directory.report)
    assert directory.store.start == load_start(disk, str(path)) == start_at_of(directory, 20)
    assert read_log(directory.store) == expected
    assert directory.committed_index == 19  # no checkpoint: what was dropped was committed
    # Down to the start, and on from there.
    directory.store.truncate_from(20)
    assert directory.store.end == directory.store.begin
    append_numbered(directory.store, 5, term=3)
    sync(directory.store)
    directory.close(clean=False)
    with opened(path, disk=disk) as directory:
        assert read_log(directory.store) == numbered(5, term=3, first=20)


def start_at_of(directory: MemberDirectory, index: int) -> LogStart:
    return LogStart(directory.store.begin, b"state before %d" % index)


def test_a_range_that_is_being_read_while_its_segment_goes(tmp_path: Path) -> None:
    directory = filled(tmp_path / "n0")
    store = directory.store
    assert isinstance(store, LedgerStore)
    segment = store._data.file_at(0)
    assert segment is not None and segment.acquire()
    drop(directory, 12)
    assert len(segment.pread(10, 0)) == 10
    segment.release()
    assert not segment.acquire()
    directory.close(clean=True)


def test_an_examination_from_before_is_not_believed(tmp_path: Path) -> None:
    directory = filled(tmp_path / "n0")
    store = directory.store
    flip(tmp_path / "n0" / "data" / f"{0:020d}", 100)
    found = store.examine(0, 4)
    assert found.ranges
    drop(directory, 12)
    assert store.settle(found) is None
    assert store.damaged == ()
    assert not store.examine(12, 23).ranges
    directory.close(clean=True)


def test_of_damaged_ranges_what_lies_below_is_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path / "n1") as twin:
        append_numbered(twin.store, COUNT)
        sync(twin.store)
        path = tmp_path / "n0"
        directory = filled(path)
        store = directory.store
        for base, positions in {0: [100], 1024: [900], 2048: [100, 348]}.items():
            for position in positions:
                flip(path / "data" / f"{base:020d}", position)
        store.settle(store.examine(0, COUNT))
        store.save_damaged()
        assert [(r.first_index, r.stop_index) for r in store.damaged] == [(0, 1), (7, 10)]
        # The entry before the first that stays is damaged here, and known by what follows it.
        before = twin.store.point_on_disk(7)
        start = LogStart(msgspec.structs.replace(before, position=2048), b"s")
        directory.save_start(start)
        directory.close(clean=False)  # as if killed before anything went
        directory = open_small(path)
        store = directory.store
        assert [(r.first_index, r.stop_index) for r in store.damaged] == [(8, 10)]
        assert store.damaged[0].before == start.point
        assert store.damaged[0].path == f"data/{2048:020d}"
        assert repair_from(twin.store, store) == [(8, 10)]
        assert read_log(store) == numbered(15, first=8)
        directory.close(clean=True)
        directory = open_small(path)
        assert directory.store.damaged == ()
        directory.close(clean=True)


def test_ranges_below_are_forgotten_at_run_time_too(tmp_path: Path) -> None:
    directory = filled(tmp_path / "n0")
    store = directory.store
    flip(tmp_path / "n0" / "data" / f"{0:020d}", 100)
    flip(tmp_path / "n0" / "data" / f"{4096:020d}", 100)
    store.settle(store.examine(0, COUNT))
    store.save_damaged()
    drop(directory, 12)
    assert [r.first_index for r in store.damaged] == [16]
    directory.close(clean=False)
    with opened(tmp_path / "n0") as directory:
        assert [r.first_index for r in directory.store.damaged] == [16]


def test_without_space_for_the_first_start_nothing_is_dropped(tmp_path: Path) -> None:
    full = [True]

    def refuse(what: str, path: str) -> OSError | None:
        if full[0] and what == "create" and START_NAME in path:
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    directory = filled(tmp_path / "n0", StoppingDisk(refuse=refuse))
    with pytest.raises(DiskFull, match="no space to drop the first entries"):
        directory.save_start(start_at(directory.store, 8))
    assert directory.store.start is None
    assert read_log(directory.store) == numbered(COUNT)
    full[0] = False
    drop(directory, 8)
    assert read_log(directory.store) == numbered(15, first=8)
    directory.close(clean=True)


def test_what_a_full_disk_does_not_let_go_goes_with_the_next_drop(tmp_path: Path) -> None:
    full = [True]

    def refuse(what: str, path: str) -> OSError | None:
        if full[0] and what == "unlink" and path.endswith(f"{1024:020d}"):
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    path = tmp_path / "n0"
    directory = filled(path, StoppingDisk(refuse=refuse))
    drop(directory, 8)
    assert segments(os_disk, path)[0][:2] == [1024, 2048]
    full[0] = False
    drop(directory, 12)
    assert segments(os_disk, path)[0][0] == 3072
    directory.close(clean=True)


def test_a_segment_that_somebody_has_deleted_before_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path, os_disk)
    (path / "data" / f"{0:020d}").unlink()
    drop(directory, 12)
    assert segments(os_disk, path)[0][0] == 3072
    directory.close(clean=True)
    with opened(path) as directory:
        assert directory.store.begin.index == 11


# ---------------------------------------------------------------- crashes


def check_after_crash(path: Path, disk: Disk, starts: list[int]) -> int:
    """The log begins at one of these entries, is whole from there, and nothing is left below."""
    directory = open_small(path, disk=disk)
    first = directory.store.begin.index + 1
    assert first in starts, (first, starts)
    assert read_log(directory.store) == numbered(COUNT - first, first=first)
    if first:
        assert directory.store.start == start_at_of(directory, first)
        assert segments(disk, path)[0][0] == first * 256
        assert segments(disk, path)[1][0] == first * 32 // 320 * 320
    assert directory.committed_index >= first - 1
    append_numbered(directory.store, 1, term=2)
    sync(directory.store)
    directory.close(clean=True)
    return first


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize("earlier", [0, 8])
def test_killed_at_any_step_the_log_begins_where_it_did_or_at_the_new_start(
    tmp_path: Path, earlier: int
) -> None:
    found = []
    for stop_at in range(1000):
        path = tmp_path / str(stop_at)
        directory = filled(path)
        if earlier:
            drop(directory, earlier)
        directory.close(clean=True)
        stopping = StoppingDisk()
        directory = open_small(path, disk=stopping)
        stopping.stop_at = len(stopping.steps) + stop_at
        is_whole = True
        try:
            drop(directory, 16)
        except Stopped:
            is_whole = False
        stopping.stop_at = -1
        directory.close(clean=False)
        found.append(check_after_crash(path, os_disk, [earlier, 16]))
        if is_whole:
            break
    assert found == sorted(found) and {*found} == {earlier, 16}


@pytest.mark.parametrize("earlier", [0, 8])
def test_without_power_at_any_step(earlier: int) -> None:
    path = Path("m")
    found = set()
    for seed in range(3):
        for stop_at in range(1000):
            losing = LosingDisk()
            directory = filled(path, losing)
            if earlier:
                drop(directory, earlier)
            losing.steps_left = stop_at
            try:
                drop(directory, 16)
                is_whole = True
            except Stopped:
                is_whole = False
            losing.steps_left = -1
            losing.lose_power(Random(seed * 1000 + stop_at))
            first = check_after_crash(path, losing, [16] if is_whole else [earlier, 16])
            found.add(first)
            if is_whole:
                break
    assert found == {earlier, 16}


def check_that_a_start_that_ends_early_finds_the_same_again(replaces: bool) -> None:
    """Killed before it dropped anything, then the next start of the process loses its power at any step,
    having seen what may be in the page cache only."""
    path = Path("m")
    for seed in range(3):
        for stop_at in range(1000):
            losing = LosingDisk()
            directory = filled(path, losing)
            start = msgspec.structs.replace(start_at(directory.store, 12), replaces=replaces)
            drop(directory, 8)
            directory._refuse_releases_before(VERSION_WITH_START)
            losing.steps_left = 1 + seed  # before, behind and after the write into the first slot
            with suppress(Stopped):
                directory.save_start(start)
            losing.steps_left = stop_at
            try:
                open_small(path, disk=losing).close(clean=False)
                is_whole = True
            except Stopped:
                is_whole = False
            losing.steps_left = -1
            losing.lose_power(Random(seed * 1000 + stop_at))
            directory = open_small(path, disk=losing)
            first = directory.store.begin.index + 1
            log = read_log(directory.store)
            if replaces and first == 12:
                assert log == [] and directory.store.start == start_at_of(directory, 12)
            else:
                assert log == numbered(COUNT - first, first=first)
            assert first in (8, 12)
            if is_whole:
                break


# ---------------------------------------------------------------- at a start


def test_a_log_that_was_replaced_is_removed_wherever_it_lies(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "n0"
    directory = filled(path, disk)
    directory.write_checkpoint(directory.store.end)
    start = LogStart(LogPoint(9, 7, 4711, 4096), b"of another log", replaces=True)
    directory.save_start(start)
    directory.close(clean=True)
    for _ in range(2):
        directory = open_small(path, disk=disk, group_size=3)
        store = directory.store
        assert store.begin == store.end == store.durable == start.point
        assert store.start == msgspec.structs.replace(start, replaces=False)
        assert directory.committed_index == 9
        directory.close(clean=False)
    assert load_checkpoint(disk, str(path)) is None
    durable = read_durable_point(disk, str(path))
    assert durable is not None and durable.point == start.point
    # What is appended now stays.
    directory = open_small(path, disk=disk)
    append_numbered(directory.store, 6, term=8)
    sync(directory.store)
    directory.close(clean=False)
    with opened(path, disk=disk) as directory:
        assert read_log(directory.store) == numbered(6, term=8, first=10)
        assert directory.store.chain_at(9) == 4711


def test_a_forgotten_durable_point_is_not_below_the_start(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    drop(directory, 12)
    directory.close(clean=True)
    (path / "durable").write_bytes(bytes(8192))
    with opened(path) as directory:
        assert directory.renewed
        assert read_log(directory.store) == numbered(11, first=12)


def test_the_start_of_another_directory_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    filled(path).close(clean=True)
    before = segments(os_disk, path)
    save_start(os_disk, str(path), LogStart(LogPoint(99, 1, 5, 1 << 20), b""))
    with pytest.raises(DirectoryDamaged, match="it is the file of another directory") as refused:
        open_small(path)
    assert (refused.value.path, refused.value.position) == (f"{path}/{START_NAME}", 0)
    assert segments(os_disk, path) == before


def test_a_lost_start_is_refused_by_name_once_the_first_segment_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    directory._refuse_releases_before(VERSION_WITH_START)
    directory.close(clean=True)
    record = load_member(os_disk, str(path))
    assert record is not None and record.version == 3
    directory = open_small(path)  # killed before it had a start
    drop(directory, 8)
    directory.close(clean=True)
    (path / START_NAME).unlink()
    with pytest.raises(DirectoryDamaged, match=f"{START_NAME} is missing, the record of the begin"):
        open_small(path)


def test_a_lost_first_segment_is_not_taken_for_a_lost_start(tmp_path: Path) -> None:
    """There was to be one, and no segment has gone: the state in front of the second one is still there,
    so the others give what is lost."""
    path = tmp_path / "n0"
    directory = filled(path)
    assert directory.store.boundaries.save(start_at(directory.store, 4))
    directory._refuse_releases_before(VERSION_WITH_START)
    directory.close(clean=True)
    assert not (path / START_NAME).exists()
    (path / "data" / f"{0:020d}").unlink()
    with opened(path) as directory:
        assert (directory.store.begin, directory.store.end.index) == (LOG_ORIGIN, COUNT - 1)
        (damaged,) = directory.store.damaged
        assert (damaged.first_index, damaged.stop_index) == (0, 4)
    assert "is missing" not in verify_directory(os_disk, str(path)).problem


def test_a_new_member_that_had_no_space_for_a_start_starts_again() -> None:
    """It had said that there may be one, and has no entry that could be lost."""
    refused = 0
    for pages in range(6, 12):
        disk = SimDisk(capacity_bytes=pages * PAGE_BYTES)
        directory = open_simulated(disk)
        start = LogStart(LogPoint(100, 3, 7, 0), b"", replaces=True)
        with suppress(DiskFull):
            directory.save_start(start)
        record = load_member(disk, "m")
        assert record is not None
        refused += record.version == 3 and not disk.list("m/data")
        directory.close(clean=True)
        assert verify_directory(disk, "m").problem == "", pages
        directory = open_simulated(disk)
        assert (directory.store.start, directory.store.end) == (None, LOG_ORIGIN)
        directory.close(clean=True)
    assert refused


def test_an_older_copy_of_member_does_not_let_an_older_release_in(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    drop(directory, 8)
    directory.close(clean=True)
    record = load_member(os_disk, str(path))
    assert record is not None
    save_member(os_disk, str(path), msgspec.structs.replace(record, version=1))
    open_small(path).close(clean=True)
    assert load_member(os_disk, str(path)) == record


def test_a_first_entry_that_does_not_continue_the_start_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    drop(directory, 8)
    directory.close(clean=True)
    flip(path / "data" / f"{2048:020d}", 20)
    with opened(path) as directory:
        assert [(r.first_index, r.stop_index) for r in directory.store.damaged] == [(8, 9)]
    os.unlink(path / "damaged")


# ---------------------------------------------------------------- at random


def test_at_random_with_the_power_gone_now_and_then() -> None:
    for seed in range(15):
        random = Random(seed)
        losing, path = LosingDisk(), Path("m")
        directory = filled(path, losing, 5)
        held, first, term, durable = numbered(5), 0, 1, 4
        starts = {0}
        for _ in range(60):
            store = directory.store
            what = random.random()
            crashes = random.random() < 0.15
            if crashes:
                losing.steps_left = random.randrange(1, 30)
            try:
                if what < 0.4:
                    count = random.randrange(1, 6)
                    stop = store.end.index + 1
                    held = held[: stop - first] + numbered(count, term, first=stop)
                    append_numbered(store, count, term)
                elif what < 0.7:
                    sync(store)
                    durable = store.durable.index
                elif what < 0.95:
                    boundaries = [i for i in range(first + 1, store.durable.index + 1) if i % 4 == 0]
                    if boundaries:
                        chosen = random.choice(boundaries)
                        starts.add(chosen)
                        drop(directory, chosen)
                        held, first, starts = held[chosen - first :], chosen, {chosen}
                elif store.end.index > first + 4:
                    cut = random.randrange(first + 1, store.end.index + 1)
                    durable, held = min(durable, cut - 1), held  # either log may come back
                    store.truncate_from(cut)
                    held = held[: cut - first]
                crashed = False
            except Stopped:
                crashed = True
            if crashes or crashed:
                losing.steps_left = -1
                losing.lose_power(random)
                directory = open_small(path, disk=losing)
                store = directory.store
                begin = store.begin.index + 1
                assert begin in starts, (seed, begin, starts)
                log = read_log(store)
                assert log == held[begin - first : begin - first + len(log)], seed
                assert store.end.index >= durable, seed
                held, first, starts = log, begin, {begin}
                durable = store.end.index
                term += 1
        directory.close(clean=False)


# ---------------------------------------------------------------- for the mutants


def test_a_start_that_ends_early_in_one_log() -> None:
    check_that_a_start_that_ends_early_finds_the_same_again(replaces=False)


def test_a_start_that_ends_early_after_another_log() -> None:
    check_that_a_start_that_ends_early_finds_the_same_again(replaces=True)


def test_a_dropped_log_on_a_disk_in_memory() -> None:
    test_what_lies_below_is_gone_and_the_rest_is_as_it_was(Path("m"), MemoryDisk())


def test_a_replaced_log_on_a_disk_in_memory() -> None:
    test_a_log_that_was_replaced_is_removed_wherever_it_lies(Path("m"), MemoryDisk())


def test_a_log_that_was_put_in_place_of_another_outlives_a_start_killed_at_any_step() -> None:
    """That it replaces one is cleared in one slot, maybe in the page cache only; then entries are
    acknowledged. Without power the other slot must not remove them."""
    for stop_at in range(200):
        path, disk = Path("m"), LosingDisk()
        directory = filled(path, disk)
        start = LogStart(LogPoint(9, 7, 4711, 4096), b"other", replaces=True)
        directory.save_start(start)
        directory.close(clean=False)
        disk.steps_left = stop_at
        is_whole = False
        with suppress(Stopped):
            open_small(path, disk=disk).close(clean=False)
            is_whole = True
        disk.steps_left = -1
        directory = open_small(path, disk=disk)
        append_numbered(directory.store, 6, term=8)
        sync(directory.store)
        directory.sync_durable_point()
        acknowledged = directory.store.durable.index
        disk.lose_power(Random(stop_at))
        directory = open_small(path, disk=disk)
        assert directory.store.end.index >= acknowledged, stop_at
        directory.close(clean=False)
        if is_whole:
            return
    raise AssertionError("the start never came to its end")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_damaged_range_right_behind_the_new_begin_is_repaired(
    tmp_path: Path, is_restarted: bool
) -> None:
    with opened(tmp_path / "n1") as twin:
        append_numbered(twin.store, COUNT)
        sync(twin.store)
        directory = filled(tmp_path / "n0")
        for offset in (100, 348):
            flip(tmp_path / "n0" / "data" / f"{2048:020d}", offset)
        directory.store.settle(directory.store.examine(0, COUNT))
        directory.store.save_damaged()
        point = msgspec.structs.replace(twin.store.point_on_disk(7), position=2048)
        start = LogStart(point, b"state")
        directory.save_start(start)
        directory.store.drop_before(start)()
        if is_restarted:
            directory.close(clean=True)
            directory = open_small(tmp_path / "n0")
        assert directory.store.damaged[0].before == point
        repair_from(twin.store, directory.store)
        assert not directory.store.damaged
        assert read_log(directory.store) == numbered(COUNT - 8, first=8)
        directory.close(clean=True)


# ---------------------------------------------------------------- on a full disk, beside other faults


def full_index(full: list[bool]) -> StoppingDisk:
    """Without space in the folder of the index while `full`."""

    def refuse(what: str, path: str) -> OSError | None:
        is_refused = full[0] and what == "allocate" and "/index/" in path
        return OSError(errno.ENOSPC, "No space left on device", path) if is_refused else None

    return StoppingDisk(refuse=refuse)


@pytest.mark.parametrize("index", [4, 8, 12, 16])
def test_a_drop_while_index_units_are_in_memory_only(tmp_path: Path, index: int) -> None:
    path = tmp_path / "n0"
    filled(path).close(clean=True)
    for file in (path / "index").iterdir():
        file.unlink()
    full = [True]
    directory = open_small(path, disk=full_index(full))
    store = directory.store
    assert any("kept in memory" in line for line in directory.report)
    drop(directory, index)
    assert read_log(store) == numbered(COUNT - index, first=index)
    append_noop(store, 2)
    sync(store)
    store.truncate_from(COUNT)
    drop(directory, 20)  # whatever lay in memory in front is gone, too
    full[0] = False
    append_numbered(store, 4, term=2)
    sync(store)
    expected = numbered(COUNT - 20, first=20) + numbered(4, term=2, first=COUNT)
    assert read_log(store) == expected
    directory.close(clean=False)
    with opened(path) as directory:
        assert read_log(directory.store) == expected


def test_without_space_to_sync_a_start_the_old_log_stays(tmp_path: Path) -> None:
    """Else the next start of the process would delete what was acknowledged meanwhile."""
    full = [False]

    def refuse(what: str, path: str) -> OSError | None:
        if full[0] and what == "sync" and path.endswith(START_NAME):
            full[0] = False
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    path = tmp_path / "n0"
    directory = filled(path, StoppingDisk(refuse=refuse))
    drop(directory, 8)
    full[0] = True
    with pytest.raises(DiskFull):
        directory.save_start(LogStart(LogPoint(99, 7, 4711, 1 << 20), b"another", replaces=True))
    append_numbered(directory.store, 2, term=2)
    sync(directory.store)
    directory.close(clean=False)
    with opened(path) as directory:
        assert read_log(directory.store) == numbered(15, first=8) + numbered(2, term=2, first=COUNT)


def test_a_start_of_another_log_is_refused_while_this_one_is_whole(tmp_path: Path) -> None:
    """One that names an entry that this log has, too: only the entry itself tells."""
    path = tmp_path / "n0"
    filled(path).close(clean=True)
    before = segments(os_disk, path)
    with opened(path) as directory:
        right = start_at(directory.store, 12)
    for point in (
        msgspec.structs.replace(right.point, chain=1),
        msgspec.structs.replace(right.point, term=3),
    ):
        save_start(os_disk, str(path), LogStart(point, b""))
        with pytest.raises(DirectoryDamaged, match=r"the log holds another entry 11: it is the file of"):
            open_small(path)
        result = verify_directory(os_disk, str(path))
        assert "holds another entry 11" in result.problem, "as the tools say"
        assert segments(os_disk, path) == before
    save_start(os_disk, str(path), right)
    flip(path / "data" / f"{2048:020d}", 3 * 248 + 32)  # the chain of that entry, on this disk
    with opened(path) as directory:
        assert read_log(directory.store) == numbered(11, first=12)


def test_a_start_that_is_no_boundary_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    filled(path).close(clean=True)
    save_start(os_disk, str(path), LogStart(LogPoint(11, 1, 5, 3000), b""))
    with pytest.raises(DirectoryDamaged, match="no segment of 1024 bytes begins at 3000"):
        open_small(path)
    assert "no segment of 1024 bytes begins at 3000" in verify_directory(os_disk, str(path)).problem


def test_what_a_crash_left_beside_the_log_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    filled(path).close(clean=True)
    (path / "states").mkdir()
    left = [path / "start.tmp", path / "states" / f"{1024:020d}.tmp"]
    for each in left:
        each.write_bytes(b"half")
    open_small(path).close(clean=True)
    assert not any(each.exists() for each in left)


def test_a_file_in_place_of_the_states_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    filled(path).close(clean=True)
    (path / "states").write_bytes(b"what is it?")
    directory = open_small(path)
    assert any("states is not a directory, set aside" in line for line in directory.report)
    assert directory.store.boundaries.save(start_at(directory.store, 8))
    directory.close(clean=True)
    assert [each.read_bytes() for each in (path / "set-aside").iterdir()] == [b"what is it?"]


@pytest.mark.parametrize(
    "name",
    [
        f"states/{4096:020d}",
        f"states/{7:020d}",
        f"states/{4096:020d}.tmp",
        f"data/{0:020d}",
        f"index/{0:020d}",
        f"data/{7:020d}",
    ],
)
def test_a_folder_in_place_of_a_file_that_nobody_needs_is_set_aside(tmp_path: Path, name: str) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    drop(directory, 12)
    assert directory.store.boundaries.save(start_at(directory.store, 16))
    directory.close(clean=True)
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir()
    (path / name / "a file").write_bytes(b"of somebody")
    with opened(path) as directory:
        assert any(name in line and "set aside" in line for line in directory.report), directory.report
        assert read_log(directory.store) == numbered(COUNT - 12, first=12)
        drop(directory, 20)
        assert directory.store.begin.index == 19
    (aside,) = (path / "set-aside").iterdir()
    assert (aside / "a file").read_bytes() == b"of somebody"


def test_one_bad_slot_of_the_start_is_named_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    drop(directory, 8)
    directory.close(clean=True)
    flip(path / START_NAME, 100)
    with opened(path) as directory:
        assert any("start: one of two slots was not good" in line for line in directory.report)
    with opened(path) as directory:
        assert not any("slots" in line for line in directory.report)
    assert good_start_slots(os_disk, str(path)) == 2
