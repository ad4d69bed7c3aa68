"""OpenFiles: a disk whose files are open while they are used, and so many of them at most: a store has a
file for each of its queues at least, and a process has a thousand descriptors.

A file that is closed to make room is not synced before: what it was given is in the cache of the
operating system, and the sync of the file that is opened for it later reports what went wrong since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quorumlog.entry_header import Buffer
from quorumlog.store.disk import Disk, DiskFile, DiskLock, DiskUsage

MOST_OPEN_FILES = 256


class OpenFiles:
    """A `Disk`. Any thread."""

    def __init__(self, disk: Disk, most: int = MOST_OPEN_FILES) -> None:
        self._disk = disk
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[PooledFile, DiskFile] = OrderedDict()
        """The one that was used last comes last."""
        self._users: dict[PooledFile, int] = {}
        """Threads that use it just now: it stays open."""

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> DiskFile:
        opened = self._disk.open(path, writable=writable, create=create)
        file = PooledFile(self, path, writable)
        with self._lock:
            self._open[file] = opened
            self._make_room()
        return file

    @contextmanager
    def use(self, file: PooledFile) -> Iterator[DiskFile]:
        """Raises OSError."""
        with self._lock:
            opened = self._open.get(file)
            if opened is None:
                opened = self._open[file] = self._disk.open(file.path, writable=file.writable)
            self._open.move_to_end(file)
            self._users[file] = self._users.get(file, 0) + 1
            self._make_room()
        try:
            yield opened
        finally:
            with self._lock:
                self._users[file] -= 1
                if not self._users[file]:
                    del self._users[file]

    def _make_room(self) -> None:
        excess = len(self._open) - self._most
        if excess > 0:
            idle = [file for file in self._open if file not in self._users][:excess]
            for file in idle:
                try:
                    self._open.pop(file).close()
                except OSError as error:  # of what it was given, and no matter of who needs the room
                    file.failure = error

    def forget(self, file: PooledFile) -> None:
        """Nobody uses it (any more)."""
        with self._lock:
            opened = self._open.pop(file, None)
        if opened is not None:
            opened.close()

    # ---------------------------------------------------------------- as the disk has it

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def size_of(self, path: str) -> int:
        return self._disk.size_of(path)

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def mode_of(self, path: str) -> int:
        return self._disk.mode_of(path)

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def usage(self, path: str) -> DiskUsage:
        return self._disk.usage(path)

    def lock(self, path: str) -> DiskLock:
        return self._disk.lock(path)

    def is_locked(self, path: str) -> bool:
        return self._disk.is_locked(path)


class PooledFile:
    """A `DiskFile`."""

    def __init__(self, pool: OpenFiles, path: str, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._pool = pool
        self.failure: OSError | None = None
        """Of a write that is lost, as closing it to make room told."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Empty once retention has deleted it: who reads it then finds nothing there."""
        try:
            with self._pool.use(self) as file:
                return file.pread(size_bytes, position)
        except FileNotFoundError:
            return b""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        with self._pool.use(self) as file:
            return file.pread_into(buffer, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._pool.use(self) as file:
            file.pwritev(buffers, position)

    def allocate(self, position: int, size_bytes: int) -> None:
        with self._pool.use(self) as file:
            file.allocate(position, size_bytes)

    def set_size(self, size_bytes: int) -> None:
        with self._pool.use(self) as file:
            file.set_size(size_bytes)

    def size(self) -> int:
        with self._pool.use(self) as file:
            return file.size()

    def space_bytes(self) -> int:
        with self._pool.use(self) as file:
            return file.space_bytes()

    def next_data(self, position: int) -> int:
        with self._pool.use(self) as file:
            return file.next_data(position)

    def sync(self) -> None:
        if self.failure is not None:
            raise self.failure
        with self._pool.use(self) as file:
            file.sync()

    def uncache(self, position: int, size_bytes: int) -> None:
        with self._pool.use(self) as file:
            file.uncache(position, size_bytes)

    def close(self) -> None:
        self._pool.forget(self)
