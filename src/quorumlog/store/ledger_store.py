"""LedgerStore: what a member needs from the place where its entries lie.

Two implementations, one contract suite (`tests/store/test_contract.py`): `MemoryLedgerStore` and
`MmapLedgerStore`. A store has never heard of roles or of who may append; it knows terms only as
numbers that never fall along the log. All calls are synchronous and come from one thread, except
`SyncTask.run` and `read` of a range taken by `range_of`, which may run in another.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from quorumlog.batch import EntryBatch, Int64Array
from quorumlog.entry import EntryId


class LogPoint(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A place in the log: the entry that ends there and what the log is up to it.

    The point before the first entry of a new log is `LogPoint(-1, -1, 0, 0)`.
    """

    index: int
    term: int
    chain: int
    """chain_crc of that entry."""
    position: int
    """Byte position just behind it."""

    @property
    def entry_id(self) -> EntryId:
        return EntryId(self.index, self.term)


LOG_ORIGIN = LogPoint(-1, -1, 0, 0)


class LogRange(NamedTuple):
    """Whole entries of one data segment, contiguous bytes; may be read in any thread."""

    first_index: int
    sizes: Int64Array
    segment_position: int
    """Name of the segment: its first byte's position in the log."""
    position: int
    size_bytes: int
    previous: LogPoint
    """The entry before the range (its `position` field is not meaningful here)."""
    term_runs: tuple[tuple[int, int], ...]

    @property
    def stop_index(self) -> int:
        return self.first_index + len(self.sizes)


class SyncTask(Protocol):
    """One flush: everything appended or truncated before `begin_sync` was called."""

    done: bool
    """`run` has returned."""

    @property
    def end(self) -> LogPoint:
        """The log end that is on disk once `run` has returned."""

    def run(self) -> None:
        """fdatasync every file touched, then record the durable point. Runs in any thread.

        Raises StoreFailure; the member must stop then, nothing retries a failed sync.
        """


class LedgerStore(Protocol):
    """The log of one member: entries `begin.index + 1` .. `end.index`."""

    @property
    def begin(self) -> LogPoint:
        """The point before the first entry that is held."""

    @property
    def end(self) -> LogPoint:
        """The last entry that is held, durable or not."""

    @property
    def durable(self) -> LogPoint:
        """The last entry of which this store knows that it is on disk."""

    def term_runs(self) -> tuple[tuple[int, int], ...]:
        """((first_index, term), ...) of the whole log, in order. Called once, at a start."""

    def plan(self, sizes: Int64Array, *, control: bool = False) -> Int64Array:
        """Reserve space for a batch and say where each entry will lie, shape (count,).

        Entries that do not fit before a segment's end go to the next one. After a successful plan
        the append of the same sizes cannot run out of space. `control` entries may use the small
        reserve that data may not. Raises DiskFull and leaves everything as it was; raises
        BodyTooLarge for an entry above the limit.
        """

    def append(self, batch: EntryBatch) -> None:
        """Write a stamped batch behind the end; index, pos and chain must continue it (asserted).

        Call `plan` with the same sizes first. The bytes are not durable when this returns.
        Raises StoreFailure if the disk refuses.
        """

    def truncate_from(self, index: int) -> None:
        """Drop entries from `index` on; on disk when this returns, and no old byte can come back.

        Raises StoreFailure if the disk refuses.
        """

    def begin_sync(self) -> SyncTask | None:
        """The flush of everything dirty, or None if nothing is. One task at a time."""

    def finish_sync(self, task: SyncTask) -> None:
        """`task.run()` has returned: adopt its durable point. Called on the store's own thread."""

    def id_at(self, index: int) -> EntryId:
        """Index and term of a held entry, or of the point before the begin."""

    def chain_at(self, index: int) -> int:
        """chain_crc of a held entry, or of the point before the begin."""

    def range_of(self, first_index: int, stop_index: int, limit_bytes: int) -> LogRange:
        """The longest run of whole entries from `first_index` on that lies in one segment, below
        `stop_index` and within `limit_bytes`; at least one entry.

        Raises IndexOutOfRange if `first_index` is not held.
        """

    def read(self, log_range: LogRange) -> EntryBatch:
        """The bytes of a range, read with `pread` into memory of their own; any thread.

        Header fields and chain are checked, bodies are not (whoever receives them does).
        Raises IndexOutOfRange if the range was truncated meanwhile, DirectoryDamaged if a header
        is not what the index says.
        """

    def close(self) -> None:
        """Release files without syncing; a clean stop syncs first."""
