"""SimFile and SimLock: what one process has open on a simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorumlog.entry_header import Buffer
from quorumlog.store.disk import os_error
from quorumlog.testing.disk.inode import PAGE_BYTES, Inode, pages_of, resize

if TYPE_CHECKING:
    from quorumlog.testing.disk.sim_disk import SimDisk


class SimFile:
    """`DiskFile` of one process: after its death every call raises EBADF."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._closed = False
        self._process = disk._process

    def _check(self, writing: bool = False) -> None:
        if self._process != self._disk._process or self._closed or (writing and not self._writable):
            raise os_error(errno.EBADF, self.path)

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._check()
        assert position >= 0 <= size_bytes, (position, size_bytes)
        if self._disk.unreadable:
            self._check_readable(position, position + size_bytes)
        return bytes(self._inode.cache[position : position + size_bytes])

    def _check_readable(self, position: int, stop_position: int) -> None:
        for page in pages_of(position, min(stop_position, len(self._inode.cache))):
            if (self.path, page) in self._disk.unreadable:
                raise os_error(errno.EIO, self.path)

    def _check_replaced(self, position: int, stop_position: int) -> None:
        """A page that is written in part has to be read first."""
        for page in pages_of(position, stop_position):
            first, stop = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self._inode.cache))
            is_whole = position <= first and stop <= stop_position
            if not is_whole and (self.path, page) in self._disk.unreadable:
                raise os_error(errno.EIO, self.path)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Raises ENOSPC, and EIO for a part of a page that cannot be read; then nothing is written."""
        self._check(writing=True)
        data = b"".join(buffers)
        if not data:
            return
        disk = self._disk
        if disk.unreadable:
            self._check_replaced(position, position + len(data))
        if disk.crash_countdown == 1 and disk.crash_random is not None:
            self._write(data[: disk.crash_random.randint(0, len(data))], position)
        disk.count_effect()
        self._write(data, position)

    def _write(self, data: bytes, position: int) -> None:
        assert position >= 0, position
        if not data:
            return
        inode = self._inode
        pages = pages_of(position, position + len(data))
        if not inode.allocated.issuperset(pages):
            self._disk._take(self.path, inode, pages)
        inode.write(data, position)
        inode.dirty.update(pages)
        if self._disk.unreadable:
            self._disk.unreadable.difference_update([(self.path, page) for page in pages])

    def allocate(self, position: int, size_bytes: int) -> None:
        """Raises ENOSPC, and then nothing is taken."""
        self._check(writing=True)
        assert position >= 0 < size_bytes, (position, size_bytes)
        self._disk.count_effect()
        self._disk._take(self.path, self._inode, pages_of(position, position + size_bytes))
        cache = self._inode.cache
        cache.extend(bytes(max(0, position + size_bytes - len(cache))))

    def set_size(self, size_bytes: int) -> None:
        self._check(writing=True)
        self._disk.count_effect()
        if size_bytes < len(self._inode.cache):
            self._inode.shrink(size_bytes)
            self._disk._give_back()
        else:
            resize(self._inode.cache, size_bytes)

    def size(self) -> int:
        self._check()
        return len(self._inode.cache)

    def space_bytes(self) -> int:
        self._check()
        return len(self._inode.allocated) * PAGE_BYTES

    def next_data(self, position: int) -> int:
        self._check()
        size = len(self._inode.cache)
        pages = pages_of(position, size)
        return next((max(position, p * PAGE_BYTES) for p in pages if p in self._inode.allocated), size)

    def sync(self) -> None:
        self._check()
        disk = self._disk
        disk.count_effect()
        if disk._failing_syncs and disk._takes_failure(self.path):
            self._inode.fail_sync()
            raise os_error(errno.EIO, self.path)
        self._inode.sync()

    def uncache(self, position: int, size_bytes: int) -> None:
        if self._process == self._disk._process and not self._closed:
            stop_page = (position + size_bytes) // PAGE_BYTES
            self._inode.forget(range(-(-position // PAGE_BYTES), stop_page))

    def close(self) -> None:
        if not self._closed:
            self._check()
            self._closed = True


class SimLock:
    """`DiskLock` of one process: after its death `release` raises EBADF."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._process = disk._process

    def release(self) -> None:
        if self._process != self._disk._process:
            raise os_error(errno.EBADF, self._path)
        if self._disk._locks.get(self._path) is self:
            del self._disk._locks[self._path]
