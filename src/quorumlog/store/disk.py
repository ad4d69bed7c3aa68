"""All file access of `store/` goes through here: a real disk, or a simulated one with the same calls.

No file is mapped: a page of a mapping that the disk cannot read is a signal and no error. Errors are the
operating system's `OSError`, for the caller to interpret.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, Protocol, TypeVar

from quorumlog.entry_header import Buffer
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.measures import Histogram

T = TypeVar("T")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_UNOPENED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, *_NO_DESCRIPTORS)

PRIVATE_MODE = 0o700
"""Of directories: only for the user that runs the member."""

_FILE_MODE = 0o600


_REMEDIES = {
    errno.EIO: "check the disk, and replace it if it fails",
    errno.EROFS: "make its file system writable",
    **dict.fromkeys(_NO_SPACE, "make space on its file system"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give the user that runs this access to it"),
    **dict.fromkeys(_NO_DESCRIPTORS, "raise the limit of open files"),
}


def is_lack_of_space(error: OSError) -> bool:
    return error.errno in _NO_SPACE


def was_lack_of_space(failure: Exception) -> bool:
    """Whether this is a disk's refusal for want of space, or was raised because of one."""
    # `raise ... from` in a compiled module sets the context alone.
    cause = failure if isinstance(failure, OSError) else failure.__cause__ or failure.__context__
    return isinstance(cause, OSError) and is_lack_of_space(cause)


def is_no_damage(error: OSError) -> bool:
    """This process may not, or cannot open the file: which says nothing of its bytes."""
    return error.errno in _UNOPENED


def reason_of(error: Exception) -> str:
    """The operating system's message, without its error number."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def refusal(path: str, action: str, error: OSError) -> str:
    """A sentence for people: the refused operation, the cause and the remedy."""
    where = f" ({error.filename})" if error.filename not in (None, path) else ""
    remedy = _REMEDIES.get(error.errno or 0, "check its file system")
    return f"{path} cannot be {action}: {reason_of(error)}{where}; {remedy}"


@contextmanager
def disk_work(path: str, action: str, full: str = "") -> Iterator[None]:
    """An OSError becomes a StoreFailure; where it is a lack of space a DiskFull, which says `full`."""
    try:
        yield
    except OSError as error:
        if full and is_lack_of_space(error):
            raise DiskFull(full) from error
        raise StoreFailure(refusal(path, action, error)) from error


def not_allowed(path: str, error: PermissionError) -> str:
    """The same, of a directory of another user that is only looked at."""
    return (
        f"{path} cannot be read: no permission for {error.filename or path}; run this as the user that"
        " the member runs as"
    )


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
        """Write all of `buffers` one after the other; a short write is continued."""

    def allocate(self, position: int, size_bytes: int) -> None:
        """Reserve space so that later writes there cannot fail for lack of it (posix_fallocate)."""

    def set_size(self, size_bytes: int) -> None: ...

    def size(self) -> int: ...

    def space_bytes(self) -> int:
        """Allocated bytes; less than its size if it has holes."""

    def next_data(self, position: int) -> int:
        """The first byte from here on that lies in no hole, or the file's size."""

    def sync(self) -> None:
        """fdatasync: bytes and the metadata needed to read them."""

    def uncache(self, position: int, size_bytes: int) -> None:
        """Synced bytes that need not be kept in memory: a hint, never an error."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Files by path. Names are durable only after `sync_directory` of the folder that holds them."""

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> DiskFile:
        """`create`: the file must not exist yet; it is for its owner alone."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""

    def size_of(self, path: str) -> int: ...

    def real_path(self, path: str) -> str:
        """Absolute, with symbolic links resolved."""

    def mode_of(self, path: str) -> int:
        """Permission bits, as 0o700."""

    def make_directory(self, path: str) -> None:
        """For its owner alone; with parents, which are accessible to all. No error if it exists."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def usage(self, path: str) -> DiskUsage: ...

    def lock(self, path: str) -> DiskLock:
        """Raises BlockingIOError if another process holds it."""

    def is_locked(self, path: str) -> bool:
        """Whether a process holds `lock(path)`; writes nothing, and False if there is no such file."""


class DiskLock(Protocol):
    def release(self) -> None: ...


def os_error(number: int, path: str) -> OSError:
    """As the operating system would raise it: for disks that are none."""
    return OSError(number, os.strerror(number), path)


# ---------------------------------------------------------------- the real disk

_MAX_BUFFERS = 1024  # IOV_MAX of Linux: pwritev refuses more at once
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system has
_LOCK_TRIES = 20
_LOCK_WAIT_SECONDS = 0.005
_MOST_KEPT = 8


class KeptDescriptors:
    """Spare file descriptors of this process. When no other is left, the next file opened gets one of
    them, and the listener closes a connection to replace it. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []
        self._closers: dict[Callable[[], None], None] = {}

    def keep(self, closer: Callable[[], None]) -> None:
        """From now on. `closer`: called on any thread when one was given away, to close something soon,
        and then `refill`."""
        self._closers[closer] = None
        self.refill()

    @contextmanager
    def parking(self, park: Callable[[], int]) -> Iterator[None]:
        """For code that opens many files in a row: `park` closes some, returns how many, and is called
        on this thread."""
        opener = threading.get_ident()

        def closer() -> None:
            if threading.get_ident() == opener:
                self.refill(park())

        self.keep(closer)
        try:
            yield
        finally:
            self.let_go(closer)

    def let_go(self, closer: Callable[[], None]) -> None:
        self._closers.pop(closer, None)
        with self._lock:
            while self._kept and not self._closers:
                os.close(self._kept.pop())

    def refill(self, most: int = _MOST_KEPT) -> None:
        """As far as there are descriptors again."""
        with self._lock, suppress(OSError):
            while most and self._closers and len(self._kept) < _MOST_KEPT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY))
                most -= 1

    def opened(self, call: Callable[[], T]) -> T:
        """The result of `call`, which needs a descriptor for a file. Raises OSError."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS or not self._give():
                    raise

    def _give(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
        for closer in list(self._closers):
            closer()
        return True


kept_descriptors = KeptDescriptors()


def _opened(path: str, flags: int) -> int:
    return kept_descriptors.opened(lambda: os.open(path, flags, _FILE_MODE))


class ClosedFile:
    """A `DiskFile` that is opened for each call, and takes no descriptor in between."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk

    def _opened(self) -> closing[DiskFile]:
        return closing(self._disk.open(self.path))

    def pread(self, size_bytes: int, position: int) -> bytes:
        with self._opened() as file:
            return file.pread(size_bytes, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        with self._opened() as file:
            return file.pread_into(buffer, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Synced: a failure would be lost once the file is closed."""
        with self._opened() as file:
            file.pwritev(buffers, position)
            file.sync()

    def allocate(self, position: int, size_bytes: int) -> None:
        with self._opened() as file:
            file.allocate(position, size_bytes)

    def set_size(self, size_bytes: int) -> None:
        with self._opened() as file:
            file.set_size(size_bytes)

    def size(self) -> int:
        with self._opened() as file:
            return file.size()

    def space_bytes(self) -> int:
        with self._opened() as file:
            return file.space_bytes()

    def next_data(self, position: int) -> int:
        with self._opened() as file:
            return file.next_data(position)

    def sync(self) -> None:
        with self._opened() as file:
            file.sync()

    def uncache(self, position: int, size_bytes: int) -> None:
        with suppress(OSError), self._opened() as file:
            file.uncache(position, size_bytes)

    def close(self) -> None:
        """It is."""


class DiskTimes:
    """How long writes and syncs of files took, in microseconds; several threads add, and a few may be
    missing."""

    def __init__(self) -> None:
        self.write_us, self.sync_us = Histogram(), Histogram()


class OsFile:
    def __init__(self, path: str, descriptor: int, times: DiskTimes) -> None:
        self.path = path
        self._descriptor = descriptor
        self._times = times

    def pread(self, size_bytes: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        # One call gives at most 2 GiB, and a signal may cut it short.
        pieces = [data]
        while data and (size_bytes := size_bytes - len(data)):
            position += len(data)
            data = os.pread(self._descriptor, size_bytes, position)
            pieces.append(data)
        return b"".join(pieces)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        size_bytes = sum(map(len, pending))
        began_s = time.monotonic()
        while pending:
            written = os.pwritev(self._descriptor, pending[:_MAX_BUFFERS], position)
            if written == size_bytes:
                self._times.write_us.add(int(1e6 * (time.monotonic() - began_s)))
                return
            position += written
            size_bytes -= written
            whole = 0
            while whole < len(pending) and written >= len(pending[whole]):
                written -= len(pending[whole])
                whole += 1
            del pending[:whole]
            if written:
                pending[0] = pending[0][written:]

    def allocate(self, position: int, size_bytes: int) -> None:
        os.posix_fallocate(self._descriptor, position, size_bytes)

    def set_size(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def space_bytes(self) -> int:
        return os.fstat(self._descriptor).st_blocks * _BLOCK_BYTES

    def next_data(self, position: int) -> int:
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: a hole up to the end. Anything else: a file system that does not know.
            return self.size() if error.errno == errno.ENXIO else position

    def sync(self) -> None:
        began_s = time.monotonic()
        os.fdatasync(self._descriptor)
        self._times.sync_us.add(int(1e6 * (time.monotonic() - began_s)))

    def uncache(self, position: int, size_bytes: int) -> None:
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, position, size_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsLock:
    """An flock on a file that stays where it is: deleting it would let two processes hold it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsDisk:
    """`Disk` of the operating system (Linux)."""

    def __init__(self) -> None:
        self.times = DiskTimes()

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(path, _opened(path, flags), self.times)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(kept_descriptors.opened(lambda: os.listdir(path)))
        except FileNotFoundError:
            return []

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def mode_of(self, path: str) -> int:
        return stat.S_IMODE(os.stat(path).st_mode)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, PRIVATE_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = _opened(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def usage(self, path: str) -> DiskUsage:
        # Blocks set aside for root count neither as free nor as part of the whole, as in `df`:
        # otherwise the ratio would never reach 1 for an ordinary user.
        status = os.statvfs(path)
        used_blocks = status.f_blocks - status.f_bfree
        return DiskUsage(
            (used_blocks + status.f_bavail) * status.f_frsize, status.f_bavail * status.f_frsize
        )

    def lock(self, path: str) -> OsLock:
        descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
        try:
            for attempt in range(_LOCK_TRIES):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    # `is_locked` of another process holds it for an instant; a member holds it longer.
                    if attempt == _LOCK_TRIES - 1:
                        raise
                    time.sleep(_LOCK_WAIT_SECONDS)
                else:
                    return OsLock(descriptor)
            raise AssertionError("unreachable")
        except BaseException:
            os.close(descriptor)
            raise

    def is_locked(self, path: str) -> bool:
        try:
            descriptor = _opened(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def is_folder(disk: Disk, path: str) -> bool:
    """`path` exists."""
    try:
        disk.list(path)
    except NotADirectoryError:
        return False
    return True
