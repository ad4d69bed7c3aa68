"""MemoryEngine: ordered maps in memory. What outlives the process are the log and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from sortedcontainers import SortedDict

from quorumlog.kv.store.engine import SPACES
from quorumlog.state_machine import Applied

OVERHEAD_BYTES = 100
"""Of an item, beside its key and value."""


class MemoryEngine:
    def __init__(self) -> None:
        self._spaces: list[SortedDict[bytes, bytes]] = []
        self._size_bytes = 0
        self.clear()

    def get(self, space: int, key: bytes) -> bytes | None:
        return self._spaces[space].get(key)

    def put(self, space: int, key: bytes, value: bytes) -> None:
        items = self._spaces[space]
        before = items.get(key)
        if before is None:
            self._size_bytes += len(key) + len(value) + OVERHEAD_BYTES
            items[key] = value
        else:
            self._size_bytes += len(value) - len(before)
            dict.__setitem__(cast("dict[bytes, bytes]", items), key, value)  # its place is there

    def delete(self, space: int, key: bytes) -> None:
        value = self._spaces[space].pop(key, None)
        if value is not None:
            self._size_bytes -= len(key) + len(value) + OVERHEAD_BYTES

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        items = self._spaces[space]
        for key in items.irange(start, stop, (True, False), reverse):
            yield key, items[key]

    def count(self, space: int, start: bytes, stop: bytes | None) -> int:
        items = self._spaces[space]
        end = len(items) if stop is None else items.bisect_left(stop)
        return max(0, end - items.bisect_left(start))

    def commit(self, applied: Applied | None) -> None:
        """There is no disk."""

    def applied(self) -> Applied | None:
        return None

    def clear(self) -> None:
        self._spaces = [SortedDict() for _ in range(SPACES)]
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def close(self) -> None:
        """Nothing is open."""
