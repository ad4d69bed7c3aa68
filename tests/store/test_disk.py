"""Disk: what the protocol promises, on the file system of the tests and on those that are in memory."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import pytest

from quorumlog.store.disk import Disk, DiskUsage, OsDisk, os_error, refusal
from quorumlog.store.memory_disk import CHUNK_BYTES, MemoryDisk
from quorumlog.testing.disk import SimDisk


@pytest.fixture(params=[OsDisk, MemoryDisk, SimDisk])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = request.param()
    made.make_directory(str(tmp_path))
    return made


def test_writes_many_buffers_behind_each_other_and_reads_them_back(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    pieces = [bytes([i % 256]) * (i % 7) for i in range(3000)]  # some empty, more than one call takes
    file.pwritev(pieces, 11)
    whole = b"".join(pieces)
    assert file.pread(len(whole), 11) == whole
    assert file.pread(len(whole) + 100, 11) == whole  # shorter only at the end of the file
    assert file.pread(10, 0) == bytes(10)
    target = bytearray(len(whole) + 5)
    assert file.pread_into(memoryview(target), 11) == len(whole)
    assert target[: len(whole)] == whole
    file.sync()
    file.close()
    file.close()


def test_large_write_is_continued_until_it_is_whole(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    data = memoryview(bytes(range(256)) * 40_000)
    file.pwritev([data[:1], data[1:5_000_000], data[5_000_000:]], 0)
    assert file.size() == len(data)
    assert file.pread(len(data), 0) == data
    file.close()


def test_create_refuses_an_existing_file(disk: Disk, tmp_path: Path) -> None:
    disk.open(f"{tmp_path}/f", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open(f"{tmp_path}/f", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/other")


def test_read_only_file_refuses_writes(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.open(f"{tmp_path}/f", create=True).close()
    file = disk.open(f"{tmp_path}/f", writable=False)
    with pytest.raises(OSError) as raised:
        file.pwritev([b"x"], 0)
    assert raised.value.errno == errno.EBADF
    file.close()


def test_allocate_makes_the_file_longer_with_zeros(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    file.allocate(0, 10_000)
    assert file.size() == 10_000
    assert file.pread(10_000, 0) == bytes(10_000)
    file.set_size(5)
    assert disk.size_of(f"{tmp_path}/f") == 5
    file.close()


def test_a_sparse_file_takes_what_lies_in_it_and_what_is_reserved(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    file.set_size(1 << 26)
    assert file.space_bytes() == 0
    file.pwritev([b"x" * 8192], 0)
    file.sync()
    written = file.space_bytes()
    assert 8192 <= written <= CHUNK_BYTES
    if not isinstance(disk, MemoryDisk):  # which reserves nothing: its memory comes as it is written
        file.allocate(8192, CHUNK_BYTES)
        assert file.space_bytes() >= written + CHUNK_BYTES
    file.set_size(0)
    assert file.space_bytes() == 0
    file.close()


def test_what_was_cut_off_or_never_written_is_zeros(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    boundary = CHUNK_BYTES
    file.pwritev([b"a" * 10, b"b" * 20], boundary - 15)
    assert file.size() == boundary + 15
    assert file.pread(100, boundary - 20) == bytes(5) + b"a" * 10 + b"b" * 20
    file.set_size(boundary + 3)
    file.pwritev([b"c"], 3 * boundary)
    assert file.pread(30, boundary - 15) == b"a" * 10 + b"b" * 8 + bytes(12)
    file.set_size(boundary)
    file.set_size(2 * boundary)
    target = bytearray(b"x" * 20)
    assert file.pread_into(memoryview(target), boundary - 10) == 20
    assert target == b"a" * 5 + b"b" * 5 + bytes(10)
    assert file.pread(10, 2 * boundary) == b""
    assert disk.size_of(f"{tmp_path}/f") == 2 * boundary
    file.close()


def test_a_file_in_memory_takes_what_was_written_into_it() -> None:
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()

        def taken_bytes() -> int:
            return tracemalloc.get_traced_memory()[0] - before_bytes

        disk = MemoryDisk()
        file = disk.open("f", create=True)
        file.set_size(1 << 30)
        file.allocate(0, 1 << 30)
        assert taken_bytes() < 100_000
        assert file.next_data(0) == 1 << 30
        far = 80 * CHUNK_BYTES
        file.pwritev([bytes(10)], far)
        assert taken_bytes() < CHUNK_BYTES + 100_000
        assert file.next_data(0) == far
        assert file.next_data(far + 5) == far + 5
        assert file.next_data(far + CHUNK_BYTES) == 1 << 30
        file.set_size(far)
        assert taken_bytes() < 100_000
    finally:
        tracemalloc.stop()


def test_a_disk_in_memory_is_never_full() -> None:
    assert MemoryDisk().usage("f").used_ratio == 0.0


def test_names(disk: Disk, tmp_path: Path) -> None:
    assert disk.list(f"{tmp_path}/none") == []
    disk.make_directory(f"{tmp_path}/a/b")
    disk.make_directory(f"{tmp_path}/a/b")
    for name in ("2", "10", "1"):
        disk.open(f"{tmp_path}/a/{name}", create=True).close()
    assert disk.list(f"{tmp_path}/a") == ["1", "10", "2", "b"]
    disk.rename(f"{tmp_path}/a/1", f"{tmp_path}/a/2")
    disk.unlink(f"{tmp_path}/a/10")
    disk.sync_directory(f"{tmp_path}/a")
    assert disk.list(f"{tmp_path}/a") == ["2", "b"]
    assert disk.exists(f"{tmp_path}/a/2")
    assert not disk.exists(f"{tmp_path}/a/1")
    with pytest.raises(NotADirectoryError):
        disk.list(f"{tmp_path}/a/2")
    with pytest.raises(NotADirectoryError):
        disk.make_directory(f"{tmp_path}/a/2/c")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/none/1", create=True)
    for gone in (disk.open, disk.unlink, disk.size_of, disk.sync_directory):
        with pytest.raises(FileNotFoundError):
            gone(f"{tmp_path}/a/1")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{tmp_path}/a/1", f"{tmp_path}/a/3")
    with pytest.raises(IsADirectoryError):
        disk.rename(f"{tmp_path}/a/2", f"{tmp_path}/a/b")


def test_a_lock_has_one_holder_and_can_be_seen_without_taking_it(disk: Disk, tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    assert not disk.is_locked(path)
    assert not disk.exists(path), "asking writes nothing"
    lock = disk.lock(path)
    assert disk.is_locked(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    lock.release()
    lock.release()
    assert not disk.is_locked(path)
    disk.lock(path).release()


def test_usage(tmp_path: Path) -> None:
    disk = OsDisk()
    usage = disk.usage(str(tmp_path))
    assert 0 < usage.free_bytes <= usage.total_bytes
    assert 0.0 <= usage.used_ratio < 1.0
    assert DiskUsage(100, 25).used_ratio == 0.75


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EIO, "Input/output error; check the disk, and replace it if it fails"),
        (errno.ENOSPC, "No space left on device; make space on its file system"),
        (errno.EROFS, "Read-only file system; make its file system writable"),
        (errno.ELOOP, "Too many levels of symbolic links; check its file system"),
    ],
)
def test_a_refusal_says_where_and_why_and_what_to_do(number: int, said: str) -> None:
    assert refusal("d/member", "written", os_error(number, "d/member")) == (
        f"d/member cannot be written: {said}"
    )


def test_a_refusal_names_the_file_that_was_refused_beside_the_one_that_was_meant() -> None:
    said = refusal("d/member", "written", os_error(errno.EACCES, "d/member.tmp"))
    assert said.startswith("d/member cannot be written: Permission denied (d/member.tmp); give the user")
    assert refusal("d", "synced", OSError("gone")) == "d cannot be synced: gone; check its file system"
