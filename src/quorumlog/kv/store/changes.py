"""What members hear of their own store as it changes: values that one thread hands to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.kv.store.keyspace import Lease, Written


class Changed(NamedTuple):
    revision: int
    written: list[Written]
    """In the order of the command; empty where that would be too much to tell: history has it."""


class Granted(NamedTuple):
    lease: int
    granted: Lease


class Ended(NamedTuple):
    lease: int


class CompactedTo(NamedTuple):
    revision: int


class Begins(NamedTuple):
    """The store holds what it did not come to by applying: it was loaded, or begins."""

    revision: int
    compacted: int
    leases: dict[int, Lease]


Change = Changed | Granted | Ended | CompactedTo | Begins


class Feed:
    """Written by the thread that applies, read by the loop; `wake` is called from the former."""

    def __init__(self) -> None:
        self.items: deque[Change] = deque()
        self.wake: Callable[[], object] = lambda: None
        self.size_bytes = 0
        """Of the engine, about; as of the last batch."""

    def tell(self, items: list[Change]) -> None:
        if items:
            self.items.extend(items)
            self.wake()

    def take(self) -> list[Change]:
        taken = []
        while self.items:
            taken.append(self.items.popleft())
        return taken
