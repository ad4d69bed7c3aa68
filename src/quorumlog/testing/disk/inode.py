"""Inode: the bytes of one simulated file, in the cache and on the platter, whatever its names."""

from __future__ import annotations

from random import Random

from quorumlog.entry_header import Buffer

PAGE_BYTES = 4096
SECTOR_BYTES = 512
"""What the platter writes whole or not at all."""

_TORN_RATIO = 1 / 16
"""Of the unsynced pages that survive a power loss."""


def pages_of(position: int, stop_position: int) -> range:
    return range(position // PAGE_BYTES, -(-stop_position // PAGE_BYTES))


def resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


class Inode:
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
        """What is cut off is zeros if the file grows again, and old bytes until that is synced."""
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
