"""The loop reads no page of the log that is not in memory: whatever has to come from the disk is read
beside it, by the read thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.entry_header import Buffer
from quorumlog.node import LedgerNode
from quorumlog.store.disk import OsDisk, OsFile
from quorumlog.store.log_points import ColdRange
from quorumlog.store.segment import PAGE_BYTES
from tests.node.cell import Cell, ManualHost
from tests.node.test_ledger_node import append

WARM = 20
"""Entries whose units and chains are in memory."""


class WatchedDisk(OsDisk):
    """Knows which pages of the log are in memory: those that were written or read since the start."""

    def __init__(self) -> None:
        super().__init__()
        self.is_beside_the_loop = True
        self.warm: set[tuple[str, int]] = set()
        self.cold_reads: list[str] = []

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        file = super().open(path, writable=writable, create=create)
        is_log = "/data/" in path or "/index/" in path
        return WatchedFile(self, file) if is_log else file

    def started(self) -> None:
        self.warm.clear()
        self.is_beside_the_loop = False


class WatchedFile(OsFile):
    def __init__(self, disk: WatchedDisk, opened: OsFile) -> None:
        super().__init__(opened.path, opened._descriptor, opened._times)
        self._disk = disk

    def _pages(self, position: int, size_bytes: int) -> set[tuple[str, int]]:
        first, stop = position // PAGE_BYTES, -(-(position + size_bytes) // PAGE_BYTES)
        return {(self.path, page) for page in range(first, stop)}

    def _read(self, position: int, size_bytes: int) -> None:
        pages = self._pages(position, size_bytes)
        if not self._disk.is_beside_the_loop and not pages <= self._disk.warm:
            self._disk.cold_reads.append(f"{size_bytes} bytes at {position} of {self.path}")
        self._disk.warm |= pages

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._read(position, size_bytes)
        return super().pread(size_bytes, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self._read(position, len(buffer))
        return super().pread_into(buffer, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        super().pwritev(buffers, position)
        self._disk.warm |= self._pages(position, sum(map(len, buffers)))

    def uncache(self, position: int, size_bytes: int) -> None:
        self._disk.warm -= self._pages(position, size_bytes)
        super().uncache(position, size_bytes)


class WatchedCell(Cell):
    disks: dict[str, WatchedDisk]  # type: ignore[assignment]

    def __init__(self, path: Path) -> None:
        super().__init__(path, disks={f"n{i}": WatchedDisk() for i in range(3)})

    def start(self, member: str) -> LedgerNode:
        disk = self.disks[member]
        disk.is_beside_the_loop = True
        node = super().start(member)
        host = self.hosts[member]
        host.read_later = _watched(host, disk)  # type: ignore[method-assign]
        disk.started()
        return node

    def cold_reads(self) -> list[str]:
        return [read for disk in self.disks.values() for read in disk.cold_reads]


def _watched(
    host: ManualHost, disk: WatchedDisk
) -> Callable[[Callable[[], Any], Callable[[Any], None]], None]:
    read_later = host.read_later

    def watched(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def beside() -> Any:
            disk.is_beside_the_loop = True
            try:
                return work()
            finally:
                disk.is_beside_the_loop = False

        read_later(beside, done)

    return watched


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.node.ledger_node.RECENT_BYTES", 4096)
    monkeypatch.setattr("quorumlog.store.placement.CAPACITY", WARM)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[WatchedCell]:
    """Started again on a log of 300 entries, of which nothing is in memory."""
    before = Cell(tmp_path)
    fill(before, 300)
    before.close(clean=True)
    cell = WatchedCell(tmp_path)
    yield cell
    assert cell.cold_reads() == []
    cell.close()


def fill(cell: Cell, entries: int) -> None:
    for _ in range(entries // 20):
        outcomes = append(cell.leader(), *[b"y" * 500] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    cell.until(lambda: are_equal(cell))


def are_equal(cell: Cell) -> bool:
    ends = {node.store.end for node in cell.nodes.values()}
    applied = {node.durable_committed_index for node in cell.nodes.values()}
    return len(ends) == len(applied) == 1 and ends.pop().index == applied.pop()


def test_a_client_reads_old_entries(cell: WatchedCell) -> None:
    leader = cell.leader()
    cell.until(lambda: leader.committed_index >= 300)
    for first_index in (0, 100, 250):
        found = leader.readable_range(first_index, -1, 10_000)
        assert isinstance(found, ColdRange)
        results: list[Any] = []
        host = cell.hosts[leader.replica.member_id]
        host.read_later(lambda found=found: leader.store.read_from(*found), results.append)
        cell.step()
        assert results[0][1].first_index == first_index


def test_a_follower_far_behind_is_fed(cell: WatchedCell) -> None:
    behind = cell.followers()[0].replica.member_id
    cell.kill(behind)
    for _ in range(10):
        outcomes = append(cell.leader(), *[b"y" * 500] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    cell.start(behind)
    cell.until(lambda: are_equal(cell))


def test_an_old_leader_cuts_what_only_it_has(cell: WatchedCell) -> None:
    """More than is in memory, and after a restart nothing is."""
    for restarts in (False, True):
        old = cell.leader()
        member = old.replica.member_id
        cell.cut_off = {member}
        append(old, *[b"only here"] * 2 * WARM)
        cell.step()
        if restarts:
            cell.kill(member)
        cell.until(lambda old=old: cell.leader() is not old)
        outcomes = append(cell.leader(), *[b"instead"] * 3)
        cell.until(lambda outcomes=outcomes: outcomes)
        cell.cut_off = set()
        if restarts:
            cell.start(member)
        cell.until(lambda: are_equal(cell), "one log again")


def test_a_push_that_is_repeated_much_later(cell: WatchedCell) -> None:
    leader, follower = cell.leader(), cell.followers()[0]
    to = follower.replica.member_id
    kept: list[Any] = []
    cell.drops = lambda sender, receiver, message: (
        receiver == to and getattr(message, "batch", None) is not None and bool(kept.append(message))
    )
    fill(cell, 40)
    cell.drops = lambda sender, receiver, message: False
    cell.kill(to)
    again = cell.start(to)
    cell.until(lambda: again.raft.leader == leader.replica)
    end = again.store.end
    for message in kept:
        again.receive(message)
        cell.step()
    assert again.store.end == end


def test_damage_is_found_and_repaired(cell: WatchedCell, tmp_path: Path) -> None:
    leader, follower = cell.leader(), cell.followers()[0]
    cell.until(lambda: follower.committed_index >= 300)
    for index in (50, 51, 200):
        disk = cell.disks[follower.replica.member_id]
        disk.is_beside_the_loop = True
        place = follower.store.range_of(index, index + 1, 1)
        disk.is_beside_the_loop = False
        disk.warm.clear()
        path = tmp_path / follower.replica.member_id / "data" / f"{place.segment_position:020d}"
        with path.open("r+b") as file:
            file.seek(place.position - place.segment_position + 60)
            file.write(b"?")
        results: list[Any] = []
        host = cell.hosts[follower.replica.member_id]
        host.read_later(lambda index=index: follower.store.examine(index, index + 1), results.append)
        cell.step()
        follower.repairer.settle(results[0])
        assert follower.store.damaged
        cell.until(lambda: not follower.store.damaged)
    assert leader.problems() == ()


def test_checkpoints_are_written(tmp_path: Path) -> None:
    before = Cell(tmp_path)
    fill(before, 100)
    before.close()  # so that what is committed has to be learned
    cell = WatchedCell(tmp_path)
    cell.leader()
    cell.hold_flush = set(cell.nodes)  # the no-op does not commit, what a follower hears does
    for _ in range(2000):
        cell.step()
    cell.hold_flush = set()
    cell.until(lambda: are_equal(cell))
    for _ in range(1000):
        cell.step()
    assert cell.cold_reads() == []
    cell.close(clean=True)
