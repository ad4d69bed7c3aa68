"""What is served where disks forget: bodies of clients, whole, each in its place."""

from __future__ import annotations

import pytest

from quorumlog.errors import NotLeader
from sim.log.checkers import NEEDS_HONEST_DISKS, Violation, all_checkers, lossy_disk_checkers
from sim.log.checkers.served_entries import ServedEntries
from tests.sim.checkers.watched_cell import WatchedCell


class Served:
    """A group of one with two appends: `a`, `b` at 1 .. 2 and `c` at 3."""

    def __init__(self, *bodies: bytes) -> None:
        self.cell = WatchedCell(1)
        self.checker = ServedEntries(self.cell)
        self.first = self.cell.append(*(bodies or (b"a", b"b")))
        self.second = self.cell.append(b"c")

    def read(self, first_index: int = 0) -> None:
        self.checker.read(self.cell.read(self.cell.leader(), first_index))


def test_slices_of_what_clients_appended_are_accepted() -> None:
    served = Served()
    for first_index in (0, 1, 2, 3, 0):
        served.read(first_index)
    served.first.outcome = None  # unknown is as good
    served.read()


def test_a_body_that_nobody_has_appended_is_found() -> None:
    served = Served()
    served.cell.operations.appends.remove(served.second)
    with pytest.raises(Violation, match=r"at .*index=3.* what nobody has appended: b'c'"):
        served.read()


def test_a_body_of_a_refused_append_is_found_whenever_the_refusal_comes() -> None:
    served = Served()
    served.first.outcome = NotLeader("no")
    with pytest.raises(Violation, match="an entry of append 1, which was refused"):
        served.read()
    served = Served()
    served.read()
    served.first.outcome = NotLeader("no")
    with pytest.raises(Violation, match="append 1 was refused"):
        served.checker.appended(served.first)


def test_an_entry_that_moves_is_found() -> None:
    one, other = Served(b"a"), Served(b"a", b"b")
    one.read()
    with pytest.raises(Violation, match=r"append 2 at .*index=3.*; it was at .*index=2"):
        one.checker.read(other.cell.read(other.cell.leader(), 3))


def test_a_read_above_what_is_committed_is_found() -> None:
    served = Served()
    read = served.cell.read(served.cell.leader())
    read.committed_index = 2
    with pytest.raises(Violation, match="goes above its committed index 2"):
        served.checker.read(read)


def test_a_read_that_skips_or_changes_entries_is_found() -> None:
    served = Served()
    read = served.cell.read(served.cell.leader())
    whole = read.batch
    read.batch = whole.concatenate([whole.slice(0, 1), whole.slice(2, 4)])
    with pytest.raises(Violation, match="not contiguous"):
        served.checker.read(read)
    read.batch = whole.slice(1, 4)
    with pytest.raises(Violation, match="it begins with 1"):
        served.checker.read(read)
    changed = bytearray(whole.buffer)
    changed[-1] ^= 1
    read.batch = type(whole)(changed, whole.sizes)
    with pytest.raises(Violation, match="body_crc does not match"):
        served.checker.read(read)


def test_a_checker_watches_lossy_disks_unless_a_reason_is_given() -> None:
    cell = WatchedCell(1)
    everywhere = {type(checker) for checker in all_checkers(cell)}
    kept = {type(checker) for checker in lossy_disk_checkers(cell)}
    assert set(NEEDS_HONEST_DISKS) <= everywhere
    assert kept == everywhere - set(NEEDS_HONEST_DISKS) | {ServedEntries}
