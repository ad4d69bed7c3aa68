"""All file access of `store/` goes through here: a real disk, or a simulated one with the same calls.

Nothing else in `store/` may import `os` or `mmap`. Errors are the operating system's own `OSError`;
who calls decides what they mean (ENOSPC while reserving is `DiskFull`, the rest stops the member).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quorumlog.batch import Buffer


class DiskUsage(NamedTuple):
    """Of the file system that holds a path, in bytes."""

    total_bytes: int
    free_bytes: int
    """Available to this process."""

    @property
    def used_ratio(self) -> float:
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class DiskFile(Protocol):
    """An open file. Positions and sizes in bytes."""

    path: str

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes`; shorter only at the end of the file."""

    def pread_into(self, buffer: memoryview, position: int) -> int: ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` one behind the other; a short write is continued."""

    def allocate(self, position: int, size_bytes: int) -> None:
        """Reserve space so that later writes there cannot fail for lack of it (posix_fallocate)."""

    def set_size(self, size_bytes: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """fdatasync: bytes and the metadata needed to read them."""

    def map_read_only(self) -> memoryview:
        """The whole file as read-only shared memory; sees later writes. Not for the event loop."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Files by path. Names are durable only after `sync_directory` of the folder that holds them."""

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> DiskFile:
        """`create`: the file must not exist yet."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""

    def size_of(self, path: str) -> int: ...

    def make_directory(self, path: str) -> None:
        """With parents; no error if it exists."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def usage(self, path: str) -> DiskUsage: ...

    def lock(self, path: str) -> DiskLock:
        """Take an exclusive lock held by this process; raises BlockingIOError if another holds it."""


class DiskLock(Protocol):
    def release(self) -> None: ...
