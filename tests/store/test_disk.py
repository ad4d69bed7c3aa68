"""OsDisk: what the protocol promises, on the file system of the tests."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quorumlog.store.disk import DiskUsage, OsDisk

disk = OsDisk()


def test_writes_many_buffers_behind_each_other_and_reads_them_back(tmp_path: Path) -> None:
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


def test_large_write_is_continued_until_it_is_whole(tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    data = memoryview(bytes(range(256)) * 40_000)
    file.pwritev([data[:1], data[1:5_000_000], data[5_000_000:]], 0)
    assert file.size() == len(data)
    assert file.pread(len(data), 0) == data
    file.close()


def test_create_refuses_an_existing_file(tmp_path: Path) -> None:
    disk.open(f"{tmp_path}/f", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open(f"{tmp_path}/f", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/other")


def test_read_only_file_refuses_writes(tmp_path: Path) -> None:
    disk.open(f"{tmp_path}/f", create=True).close()
    file = disk.open(f"{tmp_path}/f", writable=False)
    with pytest.raises(OSError) as raised:
        file.pwritev([b"x"], 0)
    assert raised.value.errno == errno.EBADF
    file.close()


def test_allocate_makes_the_file_longer_with_zeros(tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    file.allocate(0, 10_000)
    assert file.size() == 10_000
    assert file.pread(10_000, 0) == bytes(10_000)
    file.set_size(5)
    assert disk.size_of(f"{tmp_path}/f") == 5
    file.close()


def test_names(tmp_path: Path) -> None:
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


def test_a_lock_has_one_holder_and_can_be_seen_without_taking_it(tmp_path: Path) -> None:
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
    usage = disk.usage(str(tmp_path))
    assert 0 < usage.free_bytes <= usage.total_bytes
    assert 0.0 <= usage.used_ratio < 1.0
    assert DiskUsage(100, 25).used_ratio == 0.75
