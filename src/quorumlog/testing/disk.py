"""SimDisk: a disk that loses unsynced pages at a power loss."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.store.disk import DiskUsage, os_error
from quorumlog.store.memory_disk import FOLDER, FileTree, Folder, parent_of
from quorumlog.store.segments import DATA_NAME, INDEX_NAME

PAGE_BYTES = 4096
SECTOR_BYTES = 512
"""Unit that the platter writes whole or not at all."""

_TORN_RATIO = 1 / 16
"""Of the unsynced pages that survive a power loss."""


def pages_of(position: int, stop_position: int) -> range:
    return range(position // PAGE_BYTES, -(-stop_position // PAGE_BYTES))


def resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


class Inode:
    """The bytes of one simulated file, in the cache and on the platter, whatever its names."""

    __slots__ = ("allocated", "cache", "dirty", "lost", "platter")

    def __init__(self, content: Buffer = b"") -> None:
        self.cache = bytearray(content)
        self.platter = bytearray(content)
        self.allocated: set[int] = set(pages_of(0, len(content)))
        """Pages that take space. Any other page is zeros, unless it is dirty or lost."""
        self.dirty: set[int] = set()
        self.lost: set[int] = set()
        """Pages of failed syncs: perhaps clean in the cache and different on the platter."""

    def platter_copy(self) -> Inode:
        copy = Inode(self.platter)
        copy.allocated = set(self.allocated)
        copy._free_behind(len(copy.platter))
        return copy

    def write(self, data: bytes, position: int) -> None:
        self.cache.extend(bytes(max(0, position - len(self.cache))))
        self.cache[position : position + len(data)] = data

    def shrink(self, size_bytes: int) -> None:
        """Bytes cut off are zeros if the file grows again, and old bytes until that is synced."""
        del self.cache[size_bytes:]
        held = self.allocated | self.dirty | self.lost
        self.dirty |= {page for page in held if page >= size_bytes // PAGE_BYTES}
        self._free_behind(size_bytes)

    def _free_behind(self, size_bytes: int) -> None:
        self.allocated = {page for page in self.allocated if page * PAGE_BYTES < size_bytes}

    def sync(self) -> None:
        cache, platter = self.cache, self.platter
        resize(platter, len(cache))
        for page in sorted(self.dirty):
            start = page * PAGE_BYTES
            platter[start : start + PAGE_BYTES] = cache[start : start + PAGE_BYTES]
        self.dirty.clear()

    def forget(self, pages: range) -> None:
        """The cache gives these pages up, but for those that are dirty."""
        for page in pages:
            start, stop = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
            if page not in self.dirty and stop <= min(len(self.cache), len(self.platter)):
                self.cache[start:stop] = self.platter[start:stop]

    def fail_sync(self) -> None:
        self.lost |= self.dirty
        self.dirty.clear()

    def lose_power(self, random: Random, size_luck: float, page_luck: float) -> None:
        """Any of the dirty pages may be on the platter, some torn between sectors; the rest is gone."""
        if len(self.cache) != len(self.platter) and random.random() < size_luck:
            resize(self.platter, len(self.cache))
        for page in sorted(self.dirty):
            if random.random() < page_luck:
                torn = random.random() < _TORN_RATIO
                for start in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SECTOR_BYTES):
                    if not torn or random.random() < 0.5:
                        self._write_back(start)
        # Space once taken stays taken: no reservation comes back to disturb the free space.
        self.allocated |= self.dirty | self.lost
        self._free_behind(len(self.platter))
        self.dirty.clear()
        self.lost.clear()
        self.cache = bytearray(self.platter)

    def _write_back(self, start: int) -> None:
        """One sector; zeros where the cached file is shorter than what the platter keeps of it."""
        stop = min(start + SECTOR_BYTES, len(self.platter))
        if start < stop:
            self.platter[start:stop] = self.cache[start:stop].ljust(stop - start, b"\0")

    def cut(self, size_bytes: int) -> None:
        assert size_bytes <= len(self.cache), (size_bytes, len(self.cache))
        del self.cache[size_bytes:]
        del self.platter[size_bytes:]
        self._free_behind(size_bytes)


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
            for page in pages_of(position, min(position + size_bytes, len(self._inode.cache))):
                self._check_readable(page)
        return bytes(self._inode.cache[position : position + size_bytes])

    def _check_readable(self, page: int) -> None:
        if (self.path, page) in self._disk.unreadable:
            raise os_error(errno.EIO, self.path)

    def _check_replaced(self, position: int, stop_position: int) -> None:
        """A page that is written in part has to be read first."""
        for page in pages_of(position, stop_position):
            first, stop = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self._inode.cache))
            if position > first or stop > stop_position:
                self._check_readable(page)

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
        disk.check_sync(self.path)
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


# ---------------------------------------------------------------- SimDisk
# The disk of one simulated machine, in memory.
#
#     cache     what reads see; outlives the process that wrote it
#     platter   what outlives the power: synced bytes under synced names, and by luck some of the rest
#
# Bytes are tracked by page. A sync brings the dirty pages of a file and its size to the platter, not
# its name; `sync_directory` brings names. A rename is one change, as in the journal of ext4 or XFS: the
# old name goes exactly when the new one comes. Everything random is drawn from generators that are
# passed in.

_LUCKS = (0.0, 0.5, 1.0)


class Crashed(BaseException):
    """The process died in this call. No `except Exception` survives it."""


_Tree = dict[str, Inode | Folder]
"""Files and directories by path."""


class SimDisk(FileTree[Inode]):
    """`Disk`, with a process that dies, a power supply that fails and bytes that rot."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        super().__init__()
        self.capacity_bytes = capacity_bytes
        self.has_greedy_neighbour = False
        """Another process takes at once all space that a file frees."""
        self.crash_countdown: int | None = None
        """The effect that brings this to zero raises `Crashed`, as does every one after it, until `kill`
        or `lose_power`. None: no crash."""
        self.crash_random: Random | None = None
        """A write that crashes leaves a prefix of this generator's choice; None: it leaves nothing."""
        self.unreadable: set[tuple[str, int]] = set()
        """(path, page number): reads there raise EIO until the page is written or its file replaced."""
        self.hangs = False
        """No sync returns: nobody may ask for one but a thread, which waits for it (`DiskQueue`)."""
        self._process = 0
        """Number of the process that lives; files and locks of earlier ones are dead."""
        self._locks: dict[str, SimLock] = {}
        self._failing_syncs: list[str] = []
        """Parts of paths, each good for one sync."""
        self._platter_names: _Tree = {}
        self._unlinked: set[str] = set()
        """Names on the platter whose file was unlinked since: a power loss may leave no file there."""

    # ---------------------------------------------------------------- Disk

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> SimFile:
        if create:
            self._add(path, Inode())
        return SimFile(self, path, self._file(path), writable)

    def size_of(self, path: str) -> int:
        return len(self._file(path).cache)

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            self.count_effect()
        super().make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self.count_effect()
        super().rename(old, new)
        moved = [(new, page) for path, page in sorted(self.unreadable) if path == old]
        self._forget_unreadable(old, new)
        self.unreadable.update(moved)

    def unlink(self, path: str) -> None:
        inode = self._file(path)
        self.count_effect()
        super().unlink(path)
        self._forget_unreadable(path)
        if self._platter_names.get(path) is inode:
            self._unlinked.add(path)
        self._give_back()

    def sync_directory(self, path: str) -> None:
        self._check_folder(path)
        self.check_sync(path)
        self.count_effect()
        folder = parent_of(f"{path}/")
        for changed in self._changes().values():
            if any(parent_of(name) == folder for name in changed):
                self._bring(changed)

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - self._used_bytes()))

    def lock(self, path: str) -> SimLock:
        if path in self._locks:
            raise os_error(errno.EWOULDBLOCK, path)
        if not self.exists(path):
            self._add(path, Inode())
        lock = self._locks[path] = SimLock(self, path)
        return lock

    def is_locked(self, path: str) -> bool:
        return path in self._locks

    # ---------------------------------------------------------------- names and space

    def _add(self, path: str, file: Inode) -> None:
        self.count_effect()
        super()._add(path, file)

    def _changes(self) -> dict[str, list[str]]:
        """Names whose entries are not on the platter as cached; those that change together under the
        name that decides for them, which is the last one that a renamed file got."""
        cached_name: dict[Inode | Folder, str] = {
            inode: name for name, inode in self._names.items() if inode is not FOLDER
        }
        changes: dict[str, list[str]] = {}
        for name in sorted({*self._names, *self._platter_names}):
            if self._names.get(name) is not self._platter_names.get(name):
                decisive = name
                while left := self._platter_names.get(decisive):
                    if cached_name.get(left, name) == name:
                        break
                    decisive = cached_name[left]
                changes.setdefault(decisive, []).append(name)
        return dict(sorted(changes.items()))

    def _bring(self, names: Iterable[str]) -> None:
        """To the platter, what the cache has under these names."""
        for name in names:
            self._unlinked.discard(name)
            if name in self._names:
                self._platter_names[name] = self._names[name]
            else:
                del self._platter_names[name]

    def _used_bytes(self) -> int:
        inodes = (inode for inode in self._names.values() if isinstance(inode, Inode))
        return PAGE_BYTES * sum(len(inode.allocated) for inode in inodes)

    def _take(self, path: str, inode: Inode, pages: range) -> None:
        """Raises ENOSPC, and then nothing is taken."""
        missing = set(pages) - inode.allocated
        if missing and self._used_bytes() + PAGE_BYTES * len(missing) > self.capacity_bytes:
            raise os_error(errno.ENOSPC, path)
        inode.allocated |= missing

    def _give_back(self) -> None:
        """Space may be free that was not."""
        if self.has_greedy_neighbour:
            self.capacity_bytes = min(self.capacity_bytes, self._used_bytes())

    def _forget_unreadable(self, *paths: str) -> None:
        self.unreadable -= {mark for mark in self.unreadable if mark[0] in paths}

    # ---------------------------------------------------------------- deaths

    def count_effect(self) -> None:
        """Called before each change of the disk, and before a message leaves. Raises Crashed."""
        if self.crash_countdown is not None:
            self.crash_countdown = max(0, self.crash_countdown - 1)
            if self.crash_countdown == 0:
                raise Crashed

    def check_sync(self, path: str) -> None:
        """Space in segments the loop makes itself where it came late; a member that knows that its disk
        hangs makes none."""
        is_of_segments = DATA_NAME in path.split("/") or INDEX_NAME in path.split("/")
        assert not self.hangs or is_of_segments, f"a loop waits for {path} on a disk that hangs"

    def fail_next_sync(self, path_part: str) -> None:
        """The next sync of a file whose path contains this raises EIO. As on Linux its pages count as
        clean: reads show them, the platter gets them only if they are written again."""
        self._failing_syncs.append(path_part)

    def fail_no_sync(self) -> None:
        self._failing_syncs.clear()

    def _takes_failure(self, path: str) -> bool:
        for number, part in enumerate(self._failing_syncs):
            if part in path:
                del self._failing_syncs[number]
                return True
        return False

    def kill(self) -> None:
        """The process dies; the cache stays."""
        self._process += 1
        self._locks.clear()
        self.crash_countdown = None

    def lose_power(self, random: Random) -> None:
        """The process dies and the cache is lost. Unsynced names, sizes and pages survive by chance,
        each by itself; whether all of a kind, half or none is likely to is drawn first."""
        self.kill()
        name_luck, size_luck, page_luck = (random.choice(_LUCKS) for _ in range(3))
        for decisive, changed in self._changes().items():
            folder = parent_of(decisive)
            if random.random() < name_luck and (not folder or folder in self._platter_names):
                self._bring(changed)
        for name in sorted(self._unlinked):
            if name in self._names and random.random() < name_luck:
                del self._platter_names[name]
        self._unlinked.clear()
        self._platter_names = self._surviving_names()
        self._names = dict(self._platter_names)
        for _, inode in sorted(self._names.items()):
            if isinstance(inode, Inode):
                inode.lose_power(random, size_luck, page_luck)

    def _surviving_names(self) -> _Tree:
        """Without what lies in a directory that has no name on the platter."""
        tree: _Tree = {}
        for name, inode in sorted(self._platter_names.items()):
            if not parent_of(name) or parent_of(name) in tree:
                tree[name] = inode
        return tree

    # ---------------------------------------------------------------- damage

    def lose_page(self, path: str, position: int) -> None:
        """The page in which `position` lies cannot be read until it is written anew, as a whole."""
        self._file(path)
        self.unreadable.add((path, position // PAGE_BYTES))

    def flip(self, path: str, position: int, mask: int) -> None:
        inode = self._file(path)
        inode.allocated.add(position // PAGE_BYTES)
        inode.cache[position] ^= mask
        if position < len(inode.platter):
            inode.platter[position] ^= mask

    def zero_page(self, path: str, position: int) -> None:
        inode = self._file(path)
        start = position // PAGE_BYTES * PAGE_BYTES
        for content in (inode.cache, inode.platter):
            size = len(content[start : start + PAGE_BYTES])
            content[start : start + size] = bytes(size)

    def truncate_file(self, path: str, size_bytes: int) -> None:
        self._file(path).cut(size_bytes)

    def delete(self, path: str) -> None:
        self._file(path)
        self.remove_tree(path)

    def remove_tree(self, path: str) -> None:
        """A file, or a directory with all that is in it; from the platter, too."""
        for tree in (self._names, self._platter_names):
            for name in [name for name in tree if f"{name}/".startswith(f"{path}/")]:
                del tree[name]
                self._unlinked.discard(name)
                self._forget_unreadable(name)

    def write_file(self, path: str, data: bytes) -> None:
        """Make or replace a file, with the directories above it; all of it synced."""
        inode = Inode(data)
        self._forget_unreadable(path)
        self._unlinked.discard(path)
        for tree in (self._names, self._platter_names):
            tree[path] = inode
            folder = path
            while folder := parent_of(folder):
                tree[folder] = FOLDER

    def restore(self, contents: dict[str, bytes]) -> None:
        """These files, synced, and no others; directories stay."""
        for path in sorted({*self._names, *self._platter_names}):
            if self._names.get(path, self._platter_names.get(path)) is not FOLDER:
                self.remove_tree(path)
        self._platter_names.update(self._names)
        for path, data in sorted(contents.items()):
            self.write_file(path, data)

    # ---------------------------------------------------------------- looking

    def paths(self) -> list[str]:
        return sorted(path for path, inode in self._names.items() if isinstance(inode, Inode))

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).cache)

    def is_synced(self, path: str, first_position: int, stop_position: int) -> bool:
        """Whether the platter has these bytes as the cache shows them."""
        inode = self._file(path)
        return inode.cache[first_position:stop_position] == inode.platter[first_position:stop_position]

    def is_name_synced(self, path: str) -> bool:
        """Whether the platter has the file of this name under this name, and the directories above."""
        inode = self._names.get(path)
        return inode is not None and self._surviving_names().get(path) is inode

    def snapshot(self) -> dict[str, bytes]:
        return {path: self.content(path) for path in self.paths()}

    def platter(self) -> SimDisk:
        """A new disk with the synced state only."""
        disk = SimDisk(capacity_bytes=self.capacity_bytes)
        disk.unreadable |= self.unreadable
        for path, inode in self._surviving_names().items():
            disk._names[path] = inode if isinstance(inode, Folder) else inode.platter_copy()
        disk._platter_names = dict(disk._names)
        return disk


Job = tuple[Callable[[], Any], Callable[[Any], None]]


class DiskQueue:
    """One disk thread of a simulated member: jobs in order, one at a time, each done at the beginning or
    at the end of the time that it takes (`draw_ms`)."""

    def __init__(
        self,
        random: Random,
        draw_ms: Callable[[], float],
        later: Callable[[float, Callable[[], None]], None],
        enter: Callable[[Callable[[], None]], None],
    ) -> None:
        """`later` runs a callback after so many milliseconds, unless the process has ended; `enter`
        passes a finished job to the member's loop."""
        self._random = random
        self._draw_ms = draw_ms
        self._later = later
        self._enter = enter
        self._jobs: deque[Job] = deque()
        self._has_worked = False
        """The first job is carried out, and its end is still to be told."""
        self._hangs = False
        self._next: Callable[[], None] | None = None
        """What is due for the first job once the disk does not hang any more."""

    def hang(self, hangs: bool) -> None:
        """Neither begins nor ends any job meanwhile."""
        self._hangs = hangs
        if not hangs and self._next is not None:
            due, self._next = self._next, None
            self._later(0.0, due)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._jobs.append((work, done))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        takes_ms = self._draw_ms()
        if self._random.random() < 0.5:
            self._later(0.0, lambda: self._work(takes_ms))
        else:
            self._later(takes_ms, lambda: self._work(0.0))

    def _work(self, rest_ms: float) -> None:
        if self._hangs:
            self._next = lambda: self._work(rest_ms)
            return
        self._has_worked = True
        result = self.run(self._jobs[0][0])
        self._later(rest_ms, lambda: self._end(result))

    def _end(self, result: Any) -> None:
        if self._hangs:
            self._next = lambda: self._end(result)
            return
        _, done = self._jobs.popleft()
        self._has_worked = False
        self._enter(lambda: done(result))
        if self._jobs:
            self._begin()

    @staticmethod
    def run(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (StoreFailure, LedgerError) as error:
            return error

    def drain(self) -> None:
        """Carry out all submitted jobs now, without callbacks."""
        if self._has_worked:
            self._jobs.popleft()
        while self._jobs:
            self.run(self._jobs.popleft()[0])
