"""Engine: ordered maps of bytes, one a space, which the keyspace is written on.

    CURRENT   key                      the key as it is now: an encoded KeyValue
    OLDER     escaped key + revision   what it was before: an encoded KeyValue; version 0: it was deleted
    CHANGES   revision + number        the key that was changed; since the compacted revision
    LEASES    lease                    encoded (TTL, index of its grant)
    ATTACHED  lease + key              nothing
    STAND     name                     encoded numbers

Numbers are 8 bytes, big-endian, so that they sort. A key in front of a number is escaped: it ends where
no other can go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Protocol, cast

from sortedcontainers import SortedDict

from quorumlog.state_machine import Applied

CURRENT, OLDER, CHANGES, LEASES, ATTACHED, STAND = range(6)
SPACES = 6

NUMBER = Struct(">Q")
CHANGE = Struct(">QI")
END = b"\0\1"


def escaped(key: bytes) -> bytes:
    return key.replace(b"\0", b"\0\xff") + END


def older_key(key: bytes, revision: int) -> bytes:
    return escaped(key) + NUMBER.pack(revision)


def parse_older_key(stored: bytes) -> tuple[bytes, int]:
    """(key, revision)."""
    return stored[:-10].replace(b"\0\xff", b"\0"), int(NUMBER.unpack_from(stored, len(stored) - 8)[0])


class Engine(Protocol):
    def get(self, space: int, key: bytes) -> bytes | None: ...

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """start <= key < stop, in order; None: to the end of the space. Nothing may be changed before it
        is read."""

    def put(self, space: int, key: bytes, value: bytes) -> None: ...

    def delete(self, space: int, key: bytes) -> None:
        """Of a key that may not be there."""

    def count(self, space: int, start: bytes, stop: bytes | None) -> int: ...

    def commit(self, applied: Applied | None) -> None:
        """What was changed since the last commit takes effect on the disk as one, with `applied`; None:
        what was applied has not changed."""

    def applied(self) -> Applied | None:
        """Of the last commit; None: an engine in memory, or nothing was committed."""

    def clear(self) -> None:
        """Forget everything."""

    @property
    def size_bytes(self) -> int:
        """About as many bytes as it holds."""

    def close(self) -> None: ...


# ----------------------------------------------------------------
# MemoryEngine: ordered maps in memory. What outlives the process are the log and snapshots.


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
