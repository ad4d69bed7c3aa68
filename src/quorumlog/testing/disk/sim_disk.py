"""SimDisk: the disk of one simulated machine, in memory.

    cache     what reads see; outlives the process that wrote it
    platter   what outlives the power: synced bytes under synced names, and by luck some of the rest

Bytes are tracked by page. A sync brings the dirty pages of a file and its size to the platter, not its
name; `sync_directory` brings names. A rename is one change, as in the journal of ext4 or XFS: the old
name goes exactly when the new one comes. Everything random is drawn from generators that are passed in.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from random import Random

from quorumlog.store.disk import DiskUsage, os_error
from quorumlog.store.memory_disk import FOLDER, FileTree, Folder, parent_of
from quorumlog.testing.disk.inode import PAGE_BYTES, Inode
from quorumlog.testing.disk.sim_file import SimFile, SimLock

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
        """Somebody else takes at once whatever space a file gives back."""
        self.crash_countdown: int | None = None
        """The effect that brings this to zero raises `Crashed`, as does every one after it, until `kill`
        or `lose_power`. None: no crash."""
        self.crash_random: Random | None = None
        """A write that crashes leaves a prefix of this generator's choice; None: it leaves nothing."""
        self.unreadable: set[tuple[str, int]] = set()
        """(path, page number): reads there raise EIO until the page is written or its file replaced."""
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
                while (left := self._platter_names.get(decisive)) and cached_name.get(
                    left, name
                ) != name:
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
        """Called before whatever changes the disk, and before a message leaves. Raises Crashed."""
        if self.crash_countdown is not None:
            self.crash_countdown = max(0, self.crash_countdown - 1)
            if self.crash_countdown == 0:
                raise Crashed

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
        """The process dies and the cache goes. What was not synced survives by luck, each name, size
        and page by itself; whether all of a kind, half or none is likely to is drawn first."""
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
        """A new disk with what would be left if nothing unsynced survived."""
        disk = SimDisk(capacity_bytes=self.capacity_bytes)
        disk.unreadable |= self.unreadable
        for path, inode in self._surviving_names().items():
            disk._names[path] = inode if isinstance(inode, Folder) else inode.platter_copy()
        disk._platter_names = dict(disk._names)
        return disk
