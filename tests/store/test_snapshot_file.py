"""Snapshots on a disk: as they were written, or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.store.disk import Disk, OsDisk, os_error
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.snapshots import (
    CHUNK_BYTES,
    ReceivedSnapshot,
    SnapshotDamaged,
    SnapshotFiles,
    SnapshotHead,
)
from quorumlog.testing.disk import Crashed, SimDisk

HEAD = SnapshotHead("counter", 2, (7, 1, 99))


def made(disk: Disk, pieces: list[bytes], head: SnapshotHead = HEAD) -> SnapshotFiles:
    if not disk.exists("/n0"):
        disk.make_directory("/n0")
        disk.sync_directory("/")
    files = SnapshotFiles(disk, "/n0")
    writer = files.create(head)
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    return files


@given(
    st.lists(st.sampled_from([0, 1, 7, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 3]), max_size=4),
    st.lists(st.sampled_from([1, 5, 1000, CHUNK_BYTES, 3 * CHUNK_BYTES]), max_size=4),
)
def test_what_was_written_is_read_in_whatever_pieces(written: list[int], read: list[int]) -> None:
    random = Random(1)
    pieces = [random.randbytes(size) for size in written]
    reader = made(MemoryDisk(), pieces).open("counter", 7)
    assert reader.head == HEAD
    whole = b"".join(pieces)
    for size in read:
        assert reader.read(size) == whole[:size]
        whole = whole[size:]
    assert reader.read() == whole
    assert reader.read(3) == reader.read() == b""
    reader.finish()


def test_a_byte_that_changed_is_noticed_before_its_chunk_is_handed_out() -> None:
    disk = MemoryDisk()
    files = made(disk, [b"abc" * 10])
    path = files.path_of("counter", 7)
    file = disk.open(path)
    for position in range(file.size()):
        good = file.pread(1, position)
        file.pwritev([bytes([good[0] ^ 4])], position)
        got = b""
        with pytest.raises(SnapshotDamaged, match=path):
            reader = files.open("counter", 7)
            got = reader.read()
            reader.finish()
        assert got in (b"", b"abc" * 10)
        file.pwritev([good], position)
    files.open("counter", 7).finish()


def test_a_file_that_is_cut_is_noticed_wherever_it_is() -> None:
    disk = MemoryDisk()
    files = made(disk, [b"abc" * 10])
    file = disk.open(files.path_of("counter", 7))
    for size in range(file.size() - 1, -1, -1):
        file.set_size(size)
        with pytest.raises(SnapshotDamaged):
            files.open("counter", 7).finish()


def test_a_copy_under_another_name_is_no_snapshot_of_that_place() -> None:
    disk = MemoryDisk()
    files = made(disk, [b"x"])
    disk.rename(files.path_of("counter", 7), files.path_of("counter", 8))
    with pytest.raises(SnapshotDamaged, match="holds counter-7"):
        files.open("counter", 8)


def test_machines_whose_names_look_alike_have_their_own() -> None:
    disk = MemoryDisk()
    files = made(disk, [b"x"])
    made(disk, [b"y"], SnapshotHead("counter-2", 1, (9, 1, 1)))
    made(disk, [b"z"], SnapshotHead("counter", 1, (3, 1, 1)))
    assert (files.indices_of("counter"), files.indices_of("counter-2")) == ([3, 7], [9])
    files.delete("counter", [3])
    assert files.indices_of("counter") == [7]


def test_whatever_a_power_loss_leaves_under_the_name_is_whole() -> None:
    """DLedger does not sync its snapshots (W14)."""
    deaths, step = 0, 0
    while deaths == step:
        step += 1
        disk = SimDisk()
        disk.make_directory("/n0")
        disk.sync_directory("/")
        made(disk, [b"old"], SnapshotHead("counter", 1, (3, 1, 1)))
        disk.crash_countdown = step
        try:
            made(disk, [b"new" * 1000])
        except Crashed:
            deaths += 1
        disk.lose_power(Random(step))
        files = SnapshotFiles(disk, "/n0")
        files.delete_unfinished("counter", 99)
        found = files.indices_of("counter")
        assert found in ([3], [3, 7])
        for index in found:
            files.open("counter", index).finish()
        assert 7 in found or deaths == step
    assert deaths > 5


def test_a_folder_whose_name_was_not_synced_is_synced_by_the_next_save() -> None:
    """Else all snapshots would go with it, and the log that they stand for is dropped meanwhile."""

    class Refusing(SimDisk):
        refuses = True

        def sync_directory(self, path: str) -> None:
            if self.refuses and path == "/n0":
                raise os_error(errno.EIO, path)
            super().sync_directory(path)

    disk = Refusing()
    with pytest.raises(OSError, match="Input/output"):
        made(disk, [b"x"])
    disk.refuses = False
    files = made(disk, [b"x"])
    assert disk.is_name_synced(files.path_of("counter", 7))


def test_a_damaged_snapshot_keeps_no_descriptor(tmp_path: Path) -> None:
    files = SnapshotFiles(OsDisk(), str(tmp_path))
    writer = files.create(HEAD)
    writer.finish()
    Path(files.path_of("counter", 7)).write_bytes(b"QLSNAP 1" + bytes(100))
    held = os.listdir("/proc/self/fd")
    with pytest.raises(SnapshotDamaged, match="its header is damaged"):
        files.open("counter", 7)
    # What earlier tests have left may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= set(held)


def test_what_came_is_compared_with_what_was_asked_for() -> None:
    """It is whole, and another one."""
    disk = MemoryDisk()
    files = made(disk, [b"a" * 10])
    with closing(files.open("counter", 7)) as reader:
        reader.finish()
    other = made(MemoryDisk(), [b"b" * 10])
    data = other.disk.open(other.path_of("counter", 7), writable=False).pread(1000, 0)
    disk.unlink(files.path_of("counter", 7))
    received = ReceivedSnapshot(files, reader.id)
    received.write(0, data)
    assert received.is_whole
    with pytest.raises(SnapshotDamaged, match="instead of"):
        received.verify()
    assert files.indices_of("counter") == []
