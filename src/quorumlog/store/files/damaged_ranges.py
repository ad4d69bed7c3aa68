"""DamagedRanges: which entries at or below the durable point this member's disk no longer holds as
written.

Such a range is neither cut nor served. The member keeps its log end and what is known of the range (the
points at both ends, the terms between), until another member's copy has taken its place (rewriting.py).

    DIR/damaged      the ranges, two lines of text; absent while there is none
                       [[[11,1,91823,2976],[12,1,77112,3224],[[12,1]],"data/0...","chain_crc ..."], ...]
                       crc32=0c4a1f2e

The file is synced before anything is written over the damage: at the next start it keeps a segment that
was made again, all zeros, from passing for a healthy one. On a full disk the ranges are kept in memory
until there is space, and a start in between looks for them again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec
from isal.isal_zlib import crc32

from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, is_no_damage, reason_of, refusal
from quorumlog.store.files.replaced_file import read_file, replace_file
from quorumlog.store.ledger_store import DamagedRange, LogPoint, LogStart

DAMAGED_NAME = "damaged"
EARLIER_DAMAGED_NAME = "healing"
"""Until a start renames it (member_directory.py)."""


def damaged_name(disk: Disk, directory: str) -> str:
    """Where both names are there the earlier one counts: a start that renames it was killed, or an
    earlier release has run since."""
    has_earlier = disk.exists(f"{directory}/{EARLIER_DAMAGED_NAME}")
    return EARLIER_DAMAGED_NAME if has_earlier else DAMAGED_NAME


def load_damaged(
    disk: Disk, directory: str, end: LogPoint, start: LogStart | None, begin_path: str
) -> tuple[DamagedRange, ...] | None:
    """The ranges that an earlier start or run has found, in order; None if the file cannot be used.
    Raises OSError if that is no damage.

    `end`: the durable point. What lies above it was cut off since, by a truncation that did not come
    to its end: it lowers the durable point first, to where a range that it cuts ends from then on. What
    lies below `start` is no longer part of the log, whose first segment is `begin_path`.
    """
    if start is not None and start.replaces:
        return ()
    ranges = _read_ranges(disk, f"{directory}/{damaged_name(disk, directory)}")
    if ranges is None:
        return None
    kept = tuple(
        each if each.last.index <= end.index else each.up_to(end)
        for each in ranges
        if each.first_index <= end.index
    )
    return kept if start is None else _behind(kept, start.point, begin_path)


def _behind(
    ranges: Iterable[DamagedRange], begin: LogPoint, begin_path: str
) -> tuple[DamagedRange, ...]:
    """What is left of them in a log that begins behind `begin`, which is with a segment."""
    return tuple(
        each.behind(begin, begin_path) if each.before.index <= begin.index else each
        for each in ranges
        if each.last.index > begin.index
    )


def _read_ranges(disk: Disk, path: str) -> tuple[DamagedRange, ...] | None:
    try:
        data = read_file(disk, path)
    except OSError as error:
        if is_no_damage(error):
            raise
        return None
    if data is None:
        return ()
    line, _, rest = data.partition(b"\n")
    if rest != f"crc32={crc32(line):08x}\n".encode():
        return None
    try:
        return msgspec.json.decode(line, type=tuple[DamagedRange, ...])
    except ValueError:
        return None


class DamagedRanges:
    """The ranges in order. Any thread may look; who writes over a range holds `lock`, maybe as long as a
    disk syncs: `add` does without it."""

    def __init__(self, disk: Disk, directory: str, ranges: Iterable[DamagedRange]) -> None:
        self.lock = threading.RLock()
        self.ranges = tuple(ranges)
        self.is_saved = False
        """The file names all of `ranges`."""
        self.problem = ""
        """Why it does not, if there was no space for it."""
        self._change = threading.Lock()
        """Held for a change of `ranges` and nothing else."""
        self._disk = disk
        self._directory = directory

    def at(self, index: int) -> DamagedRange | None:
        return next((each for each in self.ranges if each.holds(index)), None)

    def ending_at(self, index: int) -> DamagedRange | None:
        """The range whose last entry this is: its chain is known though its bytes are not."""
        return next((each for each in self.ranges if each.last.index == index), None)

    def run_around(self, damaged: DamagedRange) -> tuple[LogPoint, LogPoint]:
        """The ends of the ranges that touch this one and each other: between them no byte counts."""
        ranges, before, last = self.ranges, damaged.before, damaged.last
        for each in reversed(ranges):
            if each.before.index < before.index <= each.last.index:
                before = each.before
        for each in ranges:
            if each.before.index <= last.index < each.last.index:
                last = each.last
        return before, last

    def stop_before(self, first_index: int, stop_index: int) -> int:
        """Where a read from `first_index` on, which is good itself, has to stop."""
        return min([stop_index, *(r.first_index for r in self.ranges if r.first_index > first_index)])

    def add(self, found: Iterable[DamagedRange]) -> tuple[DamagedRange, ...]:
        """In memory at once; `save` brings it to disk. One that overlaps known ones becomes one with
        them. Returns the ranges that are new or larger."""
        with self._change:
            before = self.ranges
            for new in found:
                apart = [each for each in self.ranges if not each.overlaps(new)]
                for known in self.ranges:
                    if known.overlaps(new):
                        new = known.joined(new)
                self.ranges = tuple(sorted((*apart, new), key=lambda each: each.first_index))
            changed = tuple(each for each in self.ranges if each not in before)
            if changed:
                self.is_saved = False
            return changed

    def replace(self, repaired: DamagedRange, left: Iterable[DamagedRange]) -> None:
        """Of a range only `left` is still damaged; nothing changes if it was joined with another."""
        with self._change:
            if repaired in self.ranges:
                ranges = [each for each in self.ranges if each != repaired]
                self.ranges = tuple(sorted((*ranges, *left), key=lambda each: each.first_index))

    def truncate_to(self, end: LogPoint) -> bool:
        """Forget what a cut takes away; True if that was anything. `end`: the last entry that stays."""
        with self._change:
            before = self.ranges
            self.ranges = tuple(
                each.up_to(end) if each.holds(end.index) else each
                for each in before
                if each.first_index <= end.index
            )
            return self.ranges != before

    def drop_before(self, begin: LogPoint, begin_path: str) -> None:
        """Forget what a log no longer has that begins behind `begin`; a start does so by itself."""
        with self._change:
            ranges = _behind(self.ranges, begin, begin_path)
            if ranges != self.ranges:
                self.ranges, self.is_saved = ranges, False

    def save(self) -> bool:
        """The ranges as they are now, on disk when this returns. False: there is no space for them, and
        the file names none that is no longer damaged. Raises StoreFailure."""
        path = f"{self._directory}/{DAMAGED_NAME}"
        with self.lock:
            with self._change:
                ranges, self.is_saved = self.ranges, True
            try:
                try:
                    self._write(path, ranges)
                    self.problem = ""
                except OSError as error:
                    if not is_lack_of_space(error):
                        raise
                    self.is_saved = False
                    self.problem = (
                        f"{path} cannot be written ({reason_of(error)}): which entries are damaged is"
                        " known in memory only, and has to be found again by a restart; make space on"
                        " the disk"
                    )
                    # Other entries may take the place of what a cut took out of the list.
                    if not set(_read_ranges(self._disk, path) or ()).issubset(ranges):
                        self._write(path, ())
            except OSError as error:
                raise StoreFailure(refusal(path, "written", error)) from error
            return not self.problem

    def _write(self, path: str, ranges: tuple[DamagedRange, ...]) -> None:
        if ranges:
            line = msgspec.json.encode(ranges)
            data = line + f"\ncrc32={crc32(line):08x}\n".encode()
            replace_file(self._disk, path, data, synced=True)
        elif self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.sync_directory(self._directory)
