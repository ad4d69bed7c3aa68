"""MemoryDisk: a disk in this process's memory, for members that keep nothing (`--store memory`).

A file is kept in chunks of 1 MiB, each made when first written, so that a segment of a gigabyte takes
only the memory of its content. Nothing is synced, and space is short only when the process gets no more
memory.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from quorumlog.entry_header import Buffer
from quorumlog.store.disk import PRIVATE_MODE, DiskUsage, os_error

_ROOTS = ("", ".", "/")
CHUNK_BYTES = 1 << 20
"""From 4 MiB on numpy would ask for huge pages, and writes wait until the kernel has found them."""

FileT = TypeVar("FileT")
_Paths = list[str]  # inside the classes `list` is a method


class Folder:
    """A directory in the tree."""


FOLDER = Folder()


def parent_of(path: str) -> str:
    """The directory of a path; "" for the root."""
    folder = path.rpartition("/")[0]
    return "" if folder in _ROOTS else folder


class FileTree(Generic[FileT]):
    """Files of some kind by path, refused as an operating system refuses them. Folders stay once
    made."""

    def __init__(self) -> None:
        self._names: dict[str, FileT | Folder] = {}

    def exists(self, path: str) -> bool:
        return path in self._names or path in _ROOTS

    def real_path(self, path: str) -> str:
        return path

    def list(self, path: str) -> _Paths:
        if not self.exists(path):
            return []
        self._check_folder(path)
        folder = parent_of(f"{path}/")
        names = tuple(self._names)  # other threads may make and rename files meanwhile
        return sorted(posixpath.basename(name) for name in names if parent_of(name) == folder)

    def mode_of(self, path: str) -> int:
        """There is one user."""
        assert self.exists(path), path
        return PRIVATE_MODE

    def make_directory(self, path: str) -> None:
        missing = []
        while not self.exists(path):
            missing.append(path)
            path = parent_of(path)
        if not self._is_folder(path):
            raise os_error(errno.ENOTDIR if missing else errno.EEXIST, path)
        self._names.update(dict.fromkeys(missing, FOLDER))

    def rename(self, old: str, new: str) -> None:
        self._file(old)
        self._check_folder(parent_of(new))
        if self.exists(new) and self._is_folder(new):
            raise os_error(errno.EISDIR, new)
        self._names[new] = self._names.pop(old)

    def unlink(self, path: str) -> None:
        self._file(path)
        del self._names[path]

    def _add(self, path: str, file: FileT) -> None:
        self._check_folder(parent_of(path))
        if self.exists(path):
            raise os_error(errno.EEXIST, path)
        self._names[path] = file

    def _file(self, path: str) -> FileT:
        if not self.exists(path):
            raise os_error(errno.ENOENT, path)
        file = self._names.get(path, FOLDER)
        if isinstance(file, Folder):
            raise os_error(errno.EISDIR, path)
        return file

    def _is_folder(self, path: str) -> bool:
        return self._names.get(path, FOLDER) is FOLDER

    def _check_folder(self, path: str) -> None:
        if not self.exists(path):
            raise os_error(errno.ENOENT, path)
        if not self._is_folder(path):
            raise os_error(errno.ENOTDIR, path)


class MemoryFile:
    """`DiskFile`: the file itself, shared and writable by all who open it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._size = 0
        self._chunks: dict[int, memoryview] = {}

    def pread(self, size_bytes: int, position: int) -> bytes:
        return b"".join(self._held(size_bytes, position))

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        for piece in self._held(len(buffer), position):
            buffer[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _held(self, size_bytes: int, position: int) -> Iterator[Buffer]:
        for number, first, stop in _pieces(position, min(position + size_bytes, self._size)):
            chunk = self._chunks.get(number)
            yield bytes(stop - first) if chunk is None else chunk[first:stop]

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        for buffer in filter(len, buffers):
            rest = memoryview(buffer).cast("B")
            end_position = position + len(rest)
            for number, first, stop in _pieces(position, end_position):
                chunk = self._chunks.get(number)
                if chunk is None:
                    chunk = self._chunks[number] = np.zeros(CHUNK_BYTES, np.uint8).data
                chunk[first:stop] = rest[: stop - first]
                rest = rest[stop - first :]
            position = end_position
            self._size = max(self._size, position)

    def allocate(self, position: int, size_bytes: int) -> None:
        self._size = max(self._size, position + size_bytes)

    def set_size(self, size_bytes: int) -> None:
        last, kept_bytes = divmod(size_bytes, CHUNK_BYTES)
        for number in [number for number in self._chunks if number >= last]:
            if number > last or not kept_bytes:
                del self._chunks[number]
            else:
                self._chunks[number][kept_bytes:] = bytes(CHUNK_BYTES - kept_bytes)
        self._size = size_bytes

    def size(self) -> int:
        return self._size

    def space_bytes(self) -> int:
        """In chunks that something was written into; the process may have fewer pages of them."""
        return len(self._chunks) * CHUNK_BYTES

    def next_data(self, position: int) -> int:
        starts = [number * CHUNK_BYTES for number in self._chunks]
        data = [max(position, start) for start in starts if start + CHUNK_BYTES > position]
        return min([*data, self._size])

    def sync(self) -> None:
        pass

    def uncache(self, position: int, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


def _pieces(position: int, stop_position: int) -> Iterator[tuple[int, int, int]]:
    """(chunk, first byte in it, stop byte in it) of a range."""
    while position < stop_position:
        number, first = divmod(position, CHUNK_BYTES)
        stop = min(CHUNK_BYTES, first + stop_position - position)
        yield number, first, stop
        position += stop - first


class MemoryDisk(FileTree[MemoryFile]):
    """`Disk` in memory, of one owner."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[str, MemoryLock] = {}

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> MemoryFile:
        if create:
            self._add(path, MemoryFile(path))
        return self._file(path)

    def size_of(self, path: str) -> int:
        return self._file(path).size()

    def sync_directory(self, path: str) -> None:
        self._check_folder(path)

    def usage(self, path: str) -> DiskUsage:
        """No space has a measure here, so none is in use."""
        return DiskUsage(0, 0)

    def lock(self, path: str) -> MemoryLock:
        if path in self._locks:
            raise os_error(errno.EWOULDBLOCK, path)
        if not self.exists(path):
            self._add(path, MemoryFile(path))
        lock = self._locks[path] = MemoryLock(self._locks, path)
        return lock

    def is_locked(self, path: str) -> bool:
        return path in self._locks


class MemoryLock:
    def __init__(self, locks: dict[str, MemoryLock], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]
