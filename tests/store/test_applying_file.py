"""What a state machine was about to apply as its process ended."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from quorumlog.store.disk import DiskFile
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.snapshots import NOTHING, Applying, ApplyingFile


def opened(disk: Any) -> ApplyingFile:
    return ApplyingFile(disk, "/d", "counter", lambda file: None)


def test_the_next_run_finds_what_was_begun_and_what_has_ended() -> None:
    disk = MemoryDisk()
    file = opened(disk)
    assert file.found == NOTHING
    file.begins(7, 19)
    assert opened(disk).found == Applying(7, 19)
    assert str(opened(disk).found) == "entries 7 .. 18"
    file.ended(19)
    assert opened(disk).found == Applying(19, 19)
    opened(disk).begins(19, 20)
    assert str(opened(disk).found) == "entry 19"


@pytest.mark.parametrize("place", [0, 13, 17, -1])
def test_a_damaged_one_says_nothing(place: int) -> None:
    disk = MemoryDisk()
    opened(disk).begins(7, 19)
    file = disk.open("/d/applying/counter")
    content = bytearray(file.pread(file.size(), 0))
    content[place] ^= 1
    file.pwritev([content], 0)
    assert opened(disk).found == NOTHING
    file.set_size(11)
    assert opened(disk).found == NOTHING


def test_a_disk_that_refuses_it_stops_nobody() -> None:
    class Full(MemoryDisk):
        def open(self, path: str, *, writable: bool = True, create: bool = False) -> DiskFile:
            if create:
                raise OSError(errno.ENOSPC, "no space")
            return super().open(path, writable=writable, create=create)

    disk = Full()
    file = opened(disk)
    file.begins(7, 19)
    file.ended(19)
    assert opened(disk).found == NOTHING


def test_what_was_applied_counts_while_the_machine_is_built_anew() -> None:
    """It was seen, so nobody takes it for an entry that the machine never came to."""
    file = opened(MemoryDisk())
    assert file.applied_index == -1
    file.begins(7, 19)
    assert file.applied_index == 6
    file.ended(19)
    file.begins(2, 4)
    file.ended(4)
    assert file.applied_index == 18
