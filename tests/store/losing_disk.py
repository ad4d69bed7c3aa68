"""A disk in memory that loses power: what was not synced may be there, or not, sector by sector.

    cache     what reads see, also after a process was killed
    platter   what was synced, and, after `lose_power`, any part of what was not

A sync that is told to fail behaves as Linux does: it reports the error once, keeps the bytes in the
cache and calls them clean, although the platter does not have them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

from quorumlog.entry_header import Buffer
from quorumlog.store.disk import PRIVATE_MODE, DiskUsage
from tests.store.stopping_disk import Stopped

SECTOR = 512
Write = tuple[int, bytes]


class Inode:
    def __init__(self) -> None:
        self.cache = bytearray()
        self.platter = bytearray()
        self.pending: list[Write | int] = []
        """Since the last sync, in order: writes, and new sizes of the file."""

    def change(self, operation: Write | int) -> None:
        _apply(self.cache, operation)
        self.pending.append(operation)

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.platter, operation)
        self.pending.clear()

    def lose_power(self, random: Random) -> None:
        """Sectors of unsynced writes survive each by itself, sizes up to some one of them."""
        sizes = [i for i, operation in enumerate(self.pending) if isinstance(operation, int)]
        last_size = random.choice([-1, *sizes])
        luck = random.choice([0.0, 0.5, 1.0])
        for number, operation in enumerate(self.pending):
            if isinstance(operation, int):
                if number <= last_size:
                    _apply(self.platter, operation)
                continue
            position, data = operation
            for start in range(position // SECTOR * SECTOR, position + len(data), SECTOR):
                low, high = max(start, position), min(start + SECTOR, position + len(data))
                if random.random() < luck and high <= len(self.platter):
                    _apply(self.platter, (low, data[low - position : high - position]))
        self.pending.clear()
        self.cache = bytearray(self.platter)


def _apply(content: bytearray, operation: Write | int) -> None:
    if isinstance(operation, int):
        del content[operation:]
        content.extend(bytes(operation - len(content)))
        return
    position, data = operation
    content.extend(bytes(max(0, position + len(data) - len(content))))
    content[position : position + len(data)] = data


class LosingFile:
    def __init__(self, disk: LosingDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def _change(self, operation: Write | int) -> None:
        self._disk.step()
        self._inode.change(operation)

    def pread(self, size_bytes: int, position: int) -> bytes:
        return bytes(self._inode.cache[position : position + size_bytes])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._change((position, b"".join(map(bytes, buffers))))

    def allocate(self, position: int, size_bytes: int) -> None:
        if position + size_bytes > len(self._inode.cache):
            self._change(position + size_bytes)

    def set_size(self, size_bytes: int) -> None:
        self._change(size_bytes)

    def size(self) -> int:
        return len(self._inode.cache)

    def space_bytes(self) -> int:
        return self.size()

    def next_data(self, position: int) -> int:
        return position

    def sync(self) -> None:
        self._disk.step()
        if self._disk.failing_syncs and self._disk.failing_syncs in self.path:
            self._inode.pending.clear()
            raise OSError(errno.EIO, "Input/output error", self.path)
        self._inode.sync()

    def uncache(self, position: int, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


class LosingDisk:
    """Directories are flat prefixes; a name is on the platter once its directory was synced."""

    def __init__(self) -> None:
        self.failing_syncs = ""
        """A part of the paths whose syncs fail."""
        self.steps_left = -1
        """Changes until the process is killed; negative: it is not."""
        self._names: dict[str, Inode] = {}
        self._platter_names: dict[str, Inode] = {}

    def step(self) -> None:
        if self.steps_left == 0:
            raise Stopped
        self.steps_left -= 1

    @classmethod
    def of(cls, contents: dict[str, bytes]) -> LosingDisk:
        """Files by path, all of it on the platter."""
        disk = cls()
        for path, content in contents.items():
            inode = disk._names[path] = disk._platter_names[path] = Inode()
            inode.cache, inode.platter = bytearray(content), bytearray(content)
        return disk

    def contents(self) -> dict[str, bytes]:
        """What reads see."""
        return {path: bytes(inode.cache) for path, inode in self._names.items()}

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> LosingFile:
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self.step()
            self._names[path] = Inode()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return LosingFile(self, path, self._names[path])

    def exists(self, path: str) -> bool:
        return path in self._names

    def list(self, path: str) -> list[str]:
        if path in self._names:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        prefix = path + "/"
        names = {name[len(prefix) :] for name in self._names if name.startswith(prefix)}
        return sorted(name for name in names if "/" not in name)

    def size_of(self, path: str) -> int:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return len(self._names[path].cache)

    def real_path(self, path: str) -> str:
        return path

    def mode_of(self, path: str) -> int:
        return PRIVATE_MODE

    def make_directory(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.step()
        self._names[new] = self._names.pop(old)

    def unlink(self, path: str) -> None:
        self.step()
        del self._names[path]

    def sync_directory(self, path: str) -> None:
        self.step()
        for names in (self._platter_names, self._names):
            for name in [n for n in names if n.rpartition("/")[0] == path]:
                if name in self._names:
                    self._platter_names[name] = self._names[name]
                else:
                    del self._platter_names[name]

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(1 << 40, 1 << 40)

    def lock(self, path: str) -> LosingLock:
        return LosingLock()

    def is_locked(self, path: str) -> bool:
        return False

    def lose_power(self, random: Random) -> None:
        """Unsynced names each survive or do not; the process is gone as well."""
        for name in sorted({*self._names, *self._platter_names}):
            cached, synced = self._names.get(name), self._platter_names.get(name)
            if cached is not synced and random.random() < 0.5:
                if cached is None:
                    del self._platter_names[name]
                else:
                    self._platter_names[name] = cached
        self._names = dict(self._platter_names)
        for inode in self._names.values():
            inode.lose_power(random)


class LosingLock:
    def release(self) -> None:
        pass
