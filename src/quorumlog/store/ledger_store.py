"""LedgerStore: a member's interface to its stored entries.

A store knows no roles; terms are numbers that never fall along the log. All calls are synchronous and
come from one thread, except those documented as "any thread", which include all reads, since they may
wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryId
from quorumlog.header_array import Int64Array


class LogPoint(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A place in the log: the entry that ends there."""

    index: int
    term: int
    chain: int
    """chain_crc of that entry."""
    position: int
    """Byte position just after it."""

    @property
    def entry_id(self) -> EntryId:
        return EntryId(self.index, self.term)


LOG_ORIGIN = LogPoint(-1, -1, 0, 0)


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """Where a log begins that no longer has its first entries: always with a segment."""

    point: LogPoint
    """The entry before the first that exists. Its `position` is where that one lies."""
    record: bytes
    """The state of the log up to there, which no entry records any more; opaque here."""
    replaces: bool = False
    """The log replaces another one: the segments here are of that one, until this is False again."""
    owed_index: int = -1
    """Of a log that was installed: the group had committed entries up to here then."""


class LogRange(NamedTuple):
    """Whole entries of one data segment, contiguous bytes; may be read in any thread."""

    first_index: int
    sizes: Int64Array
    segment_position: int
    """Name of the segment: its first byte's position in the log."""
    position: int
    size_bytes: int
    previous: LogPoint
    """The entry before the range; its `position` means nothing here."""
    term_runs: tuple[tuple[int, int], ...]

    @property
    def stop_index(self) -> int:
        return self.first_index + len(self.sizes)


class ColdRange(NamedTuple):
    """Entries that are not in memory, as a reader asks for them: `LedgerStore.read_from`."""

    first_index: int
    stop_index: int
    limit_bytes: int


class DamagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Entries that the disk does not hold as they were written, between two points that are known."""

    before: LogPoint
    """The last good entry before them."""
    last: LogPoint
    """The last of them. Its `position` is where the next entry begins: maybe in the next segment."""
    term_runs: tuple[tuple[int, int], ...]
    path: str
    """The file in which the damage begins, relative to the directory."""
    problem: str

    @property
    def first_index(self) -> int:
        return self.before.index + 1

    @property
    def stop_index(self) -> int:
        return self.last.index + 1

    def holds(self, index: int) -> bool:
        return self.before.index < index <= self.last.index

    def term_at(self, index: int) -> int:
        assert self.holds(index), (index, self)
        return next(term for first, term in reversed(self.term_runs) if first <= index)

    def behind(self, point: LogPoint, path: str) -> DamagedRange:
        """The rest of it, in `path`, once its entries up to `point` are repaired or gone."""
        assert self.before.index <= point.index < self.last.index, (point, self)
        first = point.index + 1
        runs = tuple(run for run in self.term_runs if run[0] > first)
        runs = ((first, self.term_at(first)), *runs)
        return msgspec.structs.replace(self, before=point, term_runs=runs, path=path)

    def up_to(self, end: LogPoint) -> DamagedRange:
        """The rest of it in a log that ends with one of its entries."""
        assert self.holds(end.index), (end, self)
        assert self.before.position < end.position, (end, self)
        runs = tuple(run for run in self.term_runs if run[0] <= end.index)
        return msgspec.structs.replace(self, last=end, term_runs=runs)

    def overlaps(self, other: DamagedRange) -> bool:
        return self.first_index < other.stop_index and other.first_index < self.stop_index

    def joined(self, other: DamagedRange) -> DamagedRange:
        assert self.overlaps(other), (self, other)
        front, back = sorted((self, other), key=lambda each: each.first_index)
        if back.stop_index <= front.stop_index:
            return front
        behind = front.stop_index
        runs = [*front.term_runs]
        if back.term_at(behind) != runs[-1][1]:
            runs.append((behind, back.term_at(behind)))
        runs += [run for run in back.term_runs if run[0] > behind]
        return msgspec.structs.replace(front, last=back.last, term_runs=tuple(runs))

    def __str__(self) -> str:
        entries = f"entry {self.first_index}"
        if self.last.index > self.first_index:
            entries = f"entries {self.first_index} .. {self.last.index}"
        return f"{entries} in {self.path} (position {self.before.position}): {self.problem}"


class Examination(NamedTuple):
    """`LedgerStore.settle` acts on it."""

    ranges: tuple[DamagedRange, ...]
    units: tuple[tuple[int, bytes], ...]
    """(position in the index, bytes) of units that the data proves wrong."""
    blanks: tuple[tuple[int, int], ...]
    """(position, bytes to the end of the segment) of blank records that are not there."""
    stop_index: int
    """After the last entry that was looked at."""
    size_bytes: int
    truncations: int
    """Number of cuts when the check began: entries cut since are not damage."""


class SetAsideCount(NamedTuple):
    """Bytes that were cut off or overwritten, kept for people."""

    files: int
    size_bytes: int


class SpaceTaken(NamedTuple):
    """Bytes of the segments of data and index."""

    disk_bytes: int
    """Space reserved in them."""
    apparent_bytes: int
    """How long they are."""


class SyncTask(Protocol):
    """One flush: everything appended or truncated before `begin_sync` was called."""

    done: bool

    @property
    def end(self) -> LogPoint:
        """The log end that is on disk once `run` has returned."""

    def run(self) -> None:
        """fdatasync every file touched, then record the durable point; any thread. Raises StoreFailure:
        the member must stop, nothing retries a failed sync."""


class Boundaries(Protocol):
    """The entries before the log's segments, after which it may begin one day; any thread."""

    def newest(self, last_index: int) -> LogPoint | None:
        """The last boundary above the begin whose entry is at or below `last_index`, and which durable
        entries follow; its `position` is that of the segment. None if there is none, or damage hides
        it."""

    def above(self, index: int) -> list[LogPoint]:
        """Those above the begin and this index that durable entries follow, in order; each as `newest`
        gives it. Damage hides some."""

    def crossed(self, previous: LogPoint, batch: EntryBatch) -> list[LogPoint]:
        """Those before and among entries that were just appended after this point. Touches no
        file; the store's own thread."""

    def save(self, state: LogStart) -> bool:
        """The state at a boundary that is committed; on disk when this returns. False: that was cut off
        or dropped meanwhile, or is damaged. Raises DiskFull, StoreFailure."""

    def saved(self) -> Iterator[LogStart]:
        """The newest first; only those of this very log. Raises StoreFailure."""

    def saved_at(self, point: LogPoint) -> LogStart | None:
        """The state at this boundary, as `newest` gives it; None: it is not saved. Raises
        StoreFailure."""


class LedgerStore(Protocol):
    """The log of one member: entries `begin.index + 1` .. `end.index`."""

    boundaries: Boundaries

    @property
    def begin(self) -> LogPoint:
        """The point before the first entry that is held."""

    @property
    def start(self) -> LogStart | None:
        """Where the log begins once its first entries are gone; None: at index 0."""

    def drop_before(self, start: LogStart) -> Callable[[], None]:
        """Make the log begin after `start`, which `MemberDirectory.save_start` has brought to disk: at a
        segment whose first entry is durable. Returns work for any thread, one at a time: deleting
        earlier segments, oldest first. Files that a full disk keeps from being deleted are left to the
        next such work, or to a start. The work raises StoreFailure."""

    def left_to_delete(self) -> Callable[[], None] | None:
        """The same work again, if a full disk has kept dropped files from being deleted."""

    @property
    def end(self) -> LogPoint:
        """The last entry that is held, durable or not."""

    @property
    def durable(self) -> LogPoint:
        """The last entry of which this store knows that it is on disk."""

    def term_runs(self) -> tuple[tuple[int, int], ...]:
        """((first_index, term), ...) of the whole log, in order. Called once, at a start."""

    def plan(self, sizes: Int64Array, *, control: bool = False, sparing: bool = False) -> Int64Array:
        """Reserve space for a batch; returns where each entry will lie, shape (count,).

        The append of the same sizes cannot run out of space then. `control` entries may use the reserve
        that data may not; half of it is left, for no-ops, if `sparing`. Raises DiskFull, BodyTooLarge;
        nothing has changed then.
        """

    def append(self, batch: EntryBatch) -> None:
        """Write a stamped batch where it was planned; that it continues the log is asserted. It is not
        durable yet. Raises StoreFailure."""

    def truncate_from(self, index: int, end: LogPoint | None = None) -> None:
        """Drop entries from `index` on; on disk when this returns, and no old byte can reappear.

        `end`: the entry before, as the leader has it; needed where it is damaged here. Raises
        StoreFailure; DirectoryDamaged if the entry before turns out to be damaged, and nothing has
        changed then.
        """

    def begin_sync(self) -> SyncTask | None:
        """The flush of everything dirty, or None if nothing is. One task at a time."""

    def finish_sync(self, task: SyncTask) -> None:
        """`task.run()` has returned: adopt its durable point. Called on the store's own thread."""

    def space_ahead(self) -> Callable[[], None] | None:
        """Work for any thread that reserves space the log will need soon; None while there is enough.
        Lack of space is left to the append that needs it. Raises StoreFailure."""

    def space_taken(self) -> SpaceTaken:
        """Touches no disk. Raises StoreFailure."""

    def outgrown_cache(self) -> Callable[[], None] | None:
        """Asked after a sync: work for any thread that gives older pages back to the system, or None."""

    def id_at(self, index: int) -> EntryId:
        """Index and term of a held entry, or of the point before the begin; may read the index."""

    def chain_at(self, index: int) -> int:
        """chain_crc of a held entry, or of the point before the begin; may read the entry."""

    def range_of(self, first_index: int, stop_index: int, limit_bytes: int) -> LogRange:
        """The longest run of whole entries from `first_index` on in one segment, below `stop_index` and
        within `limit_bytes`, at least one; any thread. Raises IndexOutOfRange or RangeDamaged for
        `first_index`."""

    def point_in_memory(self, index: int) -> LogPoint | None:
        """The known data of a held entry, or of the point before the begin, without file access."""

    def point_on_disk(self, index: int) -> LogPoint:
        """The same from the files; any thread. Raises IndexOutOfRange, RangeDamaged,
        DirectoryDamaged."""

    @property
    def truncations(self) -> int:
        """How often the log was cut at either end since the start; any thread."""

    def remember(self, point: LogPoint, truncations: int) -> None:
        """`point_in_memory` knows this point until the next one comes or the log is cut. `truncations`:
        from before it was read."""

    def read_from(
        self, first_index: int, stop_index: int, limit_bytes: int, *, once: bool = False
    ) -> tuple[LogRange, EntryBatch]:
        """`range_of` and `read` in one; any thread. `once`: the entries are not kept in memory. A
        DirectoryDamaged says in `index` and `stop_index` where it may lie."""

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """As they lie in the data files, unchecked, headers and blanks included; shorter where these end
        or were dropped. Any thread. Raises OSError."""

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """All control entries among these, each by itself, as the files have them: reads all that lies
        there. Any thread. Raises
        IndexOutOfRange if the log was cut meanwhile, RangeDamaged where it cannot be known whether there
        are some, DirectoryDamaged."""

    def kinds(self, first_index: int, stop_index: int) -> Int64Array:
        """`EntryKind` of each of these, from the index, in which one flipped bit can hide an entry: for
        display, or to find a place to look. Any thread. Raises as `control_batches` does."""

    def read(self, log_range: LogRange) -> EntryBatch:
        """The bytes of a range in memory of their own; any thread. Header fields and chain are checked,
        bodies are not: the receiver does that.

        Raises IndexOutOfRange if the range was truncated meanwhile, DirectoryDamaged.
        """

    # What is damaged, and making it whole again.

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """In order; `range_of` refuses their entries with RangeDamaged."""

    def damaged_at(self, index: int) -> DamagedRange | None:
        """The damaged range that has this entry."""

    def examine(self, first_index: int, stop_index: int) -> Examination:
        """Compare data, index and bodies below the durable point, at least from `first_index` to below
        `stop_index`; any thread. Raises DirectoryDamaged if the terms of a damaged range cannot be
        known."""

    def settle(self, examination: Examination) -> tuple[DamagedRange, ...] | None:
        """Record damage and rewrite the bytes that the data itself determines; returns the ranges that
        are new or larger. None: the log was cut since the look began, and nothing is done."""

    @property
    def unsettled(self) -> Examination | None:
        """Data that the newest `settle` had no space to rewrite, to be settled once there is some."""

    def save_damaged(self) -> bool:
        """On disk when this returns; any thread. False: there is no space for it yet; the ranges stay in
        memory, and a start would have to look for them. Raises StoreFailure."""

    @property
    def damaged_problem(self) -> str:
        """Why the newest attempt to save them found no space; "" otherwise."""

    @property
    def set_aside(self) -> SetAsideCount:
        """As the newest `look_at_set_aside` found it."""

    def look_at_set_aside(self) -> None:
        """Any thread."""

    def check_piece(self, damaged: DamagedRange, batch: EntryBatch) -> LogPoint:
        """Show that these entries of another member can be those of a range, or a part of it; returns
        the point before them. Raises ProtocolViolation. Any thread.

        A piece that ends the range is proven by the chain there. Any other must be followed by an entry
        whose chain the caller knows.
        """

    def write_piece(self, damaged: DamagedRange, before: LogPoint, batch: EntryBatch) -> None:
        """Write and sync a piece that `check_piece` has accepted, with the point it returned; any
        thread. The damaged bytes are first set aside, space permitting.

        Raises IndexOutOfRange if the range was cut meanwhile, StoreFailure; DiskFull, and nothing is
        overwritten.
        """

    def configure(self, config: StoreConfig) -> None:
        """Change the options that a running member may reload (`config.RELOADABLE`)."""

    def make_no_space(self, is_so: bool) -> None:
        """The disk hangs, or does no longer. While it does, `plan` raises DiskFull where space would
        have to be made first, unless for no-ops alone: that waits for the disk."""

    def park_files(self) -> int:
        """Descriptors have run out: give back some of files that are read only, which are opened for
        each read from now on. Returns how many."""

    def close(self) -> None:
        """Release files without syncing; a clean stop syncs first."""
