"""The states that are saved in front of segments."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import OsDisk, OsFile
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.state_files import decode_state, encode_state, saved_positions
from tests.store.log_making import append_numbered, sync
from tests.store.losing_disk import LosingDisk
from tests.store.made_logs import flip, open_small, opened
from tests.store.stopping_disk import Stopped, StoppingDisk
from tests.store.test_drop import drop, filled, os_disk, segments, start_at


def saved(store: LedgerStore) -> list[int]:
    """The first index behind each state, the newest first."""
    return [state.point.index + 1 for state in store.boundaries.saved()]


def save_all(store: LedgerStore, *indices: int) -> None:
    assert all(store.boundaries.save(start_at(store, index)) for index in indices)


def test_golden_bytes() -> None:
    state = LogStart(LogPoint(3, 1, 77, 1024), b"s")
    data = encode_state(state)
    assert data[8:].hex(" ") == "92 94 03 01 4d cd 04 00 c4 01 73"
    assert decode_state(data) == state
    for at in (0, 5, 9, len(data) - 1):
        assert decode_state(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
    assert decode_state(b"") is None


def test_the_newest_boundary_at_or_below_an_entry(tmp_path: Path) -> None:
    directory = filled(tmp_path / "n0")
    store = directory.store
    append_numbered(store, 2)  # entries 23 and 24, which begins a segment and is not durable yet
    found = [store.boundaries.newest(index) for index in (2, 3, 6, 7, 22, 24)]
    assert [None if point is None else point.index for point in found] == [None, 3, 3, 7, 19, 19]
    assert found[1] == start_at(store, 4).point
    sync(store)
    assert store.boundaries.newest(24) == start_at(store, 24).point
    drop(directory, 8)
    assert store.boundaries.newest(10) is None
    directory.close(clean=True)


def test_states_live_until_their_boundary_is_cut_or_dropped(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    store = directory.store
    save_all(store, 4, 8, 12, 16, 20)
    assert saved(store) == [20, 16, 12, 8, 4]
    assert next(store.boundaries.saved()) == start_at(store, 20)
    store.truncate_from(20)  # what comes next may fit in front of the boundary
    assert saved(store) == [16, 12, 8, 4]
    store.truncate_from(18)
    assert saved(store) == [16, 12, 8, 4]
    drop(directory, 8)
    assert saved(store) == [16, 12]
    assert saved_positions(os_disk, str(path)) == [3072, 4096]
    directory.close(clean=False)
    with opened(path) as directory:
        assert saved(directory.store) == [16, 12]


def test_a_state_of_another_log_or_damaged_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    store = directory.store
    save_all(store, 4, 8, 12)
    right = start_at(store, 16)
    for wrong in (
        msgspec.structs.replace(right.point, chain=1),
        msgspec.structs.replace(right.point, term=3),
        msgspec.structs.replace(right.point, index=14),
        msgspec.structs.replace(right.point, position=4096 + 1024),
        msgspec.structs.replace(right.point, index=99, position=1 << 20),
    ):
        assert not store.boundaries.save(LogStart(wrong, b""))
    flip(path / "states" / f"{3072:020d}", 20)
    assert saved(store) == [8, 4]
    directory.close(clean=True)


def test_a_boundary_that_is_not_durable_is_not_saved(tmp_path: Path) -> None:
    directory = filled(tmp_path / "n0")
    store = directory.store
    append_numbered(store, 3)
    assert not store.boundaries.save(start_at(store, 24))
    sync(store)
    assert store.boundaries.save(start_at(store, 24))
    directory.close(clean=True)


def test_a_state_is_no_state_of_a_log_that_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = filled(path)
    save_all(directory.store, 4, 8)
    directory.save_start(msgspec.structs.replace(start_at(directory.store, 8), replaces=True))
    directory.close(clean=False)
    open_small(path).close(clean=True)
    assert saved_positions(os_disk, str(path)) == []
    assert segments(os_disk, path)[0][0] == 2048


def test_lack_of_space_is_no_failure(tmp_path: Path) -> None:
    def refuse(what: str, path: str) -> OSError | None:
        full = what == "create" and "/states/" in path
        return OSError(errno.ENOSPC, "No space left on device", path) if full else None

    directory = filled(tmp_path / "n0", StoppingDisk(refuse=refuse))
    with pytest.raises(DiskFull, match="no space for a state of the log"):
        directory.store.boundaries.save(start_at(directory.store, 4))
    assert saved(directory.store) == []
    directory.close(clean=True)


def test_a_cut_waits_for_no_sync_of_a_state(tmp_path: Path) -> None:
    """What was staged of a boundary that is cut meanwhile is never a state."""
    meanwhile: list[Callable[[], None]] = []

    def refuse(what: str, path: str) -> OSError | None:
        if what == "sync" and "/states/" in path and meanwhile:
            meanwhile.pop()()
        return None

    path = tmp_path / "n0"
    directory = filled(path, StoppingDisk(refuse=refuse))
    store = directory.store
    state = start_at(store, 20)
    meanwhile.append(lambda: store.truncate_from(18))
    assert not store.boundaries.save(state)
    assert saved(store) == [] and list((path / "states").iterdir()) == []
    meanwhile.append(lambda: drop(directory, 8))
    assert store.boundaries.save(start_at(store, 16)), "what lies below may go meanwhile"
    assert saved(store) == [16]
    directory.close(clean=True)


def test_what_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    class Exhausted(OsDisk):
        is_exhausted = False

        def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
            if self.is_exhausted:
                raise OSError(errno.EMFILE, "Too many open files", path)
            return super().open(path, writable=writable, create=create)

    disk = Exhausted()
    directory = filled(tmp_path / "n0", disk)
    save_all(directory.store, 4, 8)
    disk.is_exhausted = True
    for act in (
        lambda: saved(directory.store),
        lambda: directory.store.boundaries.saved_at(start_at(directory.store, 8).point),
        lambda: directory.store.boundaries.save(start_at(directory.store, 12)),
    ):
        with pytest.raises(StoreFailure, match="raise the limit of open files"):
            act()
    directory.close(clean=False)


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_any_step_a_state_is_whole_or_not_there(tmp_path: Path) -> None:
    found = []
    for stop_at in range(100):
        path = tmp_path / str(stop_at)
        directory = filled(path)
        save_all(directory.store, 4)
        directory.close(clean=True)
        stopping = StoppingDisk()
        directory = open_small(path, disk=stopping)
        stopping.stop_at = len(stopping.steps) + stop_at
        is_whole = True
        try:
            save_all(directory.store, 8)
        except Stopped:
            is_whole = False
        stopping.stop_at = -1
        directory.close(clean=False)
        with opened(path) as directory:
            found.append(saved(directory.store))
            assert directory.committed_index == found[-1][0] - 1, "what is saved was committed"
        assert not list((path / "states").glob("*.tmp"))
        if is_whole:
            break
    assert found[0] == [4] and found[-1] == [8, 4] and found == sorted(found)


def test_without_power_at_any_step_what_was_saved_stays() -> None:
    for seed in range(3):
        for stop_at in range(100):
            losing = LosingDisk()
            directory = filled(Path("m"), losing)
            save_all(directory.store, 4)
            losing.steps_left = stop_at
            try:
                save_all(directory.store, 8)
                is_whole = True
            except Stopped:
                is_whole = False
            losing.steps_left = -1
            losing.lose_power(Random(seed * 1000 + stop_at))
            directory = open_small(Path("m"), disk=losing)
            assert saved(directory.store) in ([[8, 4]] if is_whole else [[4], [8, 4]])
            directory.close(clean=True)
            if is_whole:
                break
