"""DirectoryReader: a member's directory, ours or a Java DLedger member's, opened only to look.

It finds the begin and the end of the log as a start would (own_extent.py, java_extent.py) and changes
nothing. Opening reads one header per segment and the tail, so that a large log opens quickly. Entries
are checked when they are read, a batch at a time: index units say where they should lie, and what lies
there must be the log. Where the units are wrong, the data decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from quorumlog.batch import EntryBatch, HeaderArray, Int64Array, chain_of
from quorumlog.config import MIB
from quorumlog.entry import EntryId, EntryKind, Formation, HardState
from quorumlog.entry_header import HEADER_BYTES, EntryHeader
from quorumlog.errors import ConfigError, DirectoryDamaged, IndexOutOfRange
from quorumlog.store.checkpoint_file import load_checkpoint
from quorumlog.store.disk import Disk, DiskFile
from quorumlog.store.durable_file import DURABLE_NAME, read_durable_point
from quorumlog.store.hard_state_file import CURRTERM_NAME, HARD_STATE_NAME, read_hard_state
from quorumlog.store.java_extent import find_java_extent
from quorumlog.store.ledger_store import LogPoint, QuarantinedRange
from quorumlog.store.log_extent import (
    Damage,
    LogSegment,
    decode_entry_header,
)
from quorumlog.store.member_file import MEMBER_NAME, load_member
from quorumlog.store.mmap_file_list import DATA_NAME
from quorumlog.store.own_extent import find_own_extent
from quorumlog.store.quarantine import HEALING_NAME, load_quarantine
from quorumlog.store.segment_files import IndexUnits, cached_file, list_segment_files
from quorumlog.store.segment_scan import BLANK_BYTES, IndexArray, SegmentScan, scan_segment

_WINDOW_UNITS = 32_768


class _Place(NamedTuple):
    """Where reading has got to; the three last fields are of the entry before."""

    next_index: int
    position: int
    previous_term: int
    previous_chain: int


class DirectoryReader:
    """Read-only; a context manager. Not thread-safe: one per thread.

    Indices name entries (-1: none); `ledger_end_index` is what a start would keep.
    """

    is_java: bool
    """Written by a Java member: no entry need carry digests, and no file says whose it is."""
    checked: bool
    """Every entry carries both digests."""
    in_use: bool
    """A running member holds the directory: its log may grow, or be cut, while it is read here."""

    def __init__(self, disk: Disk, path: str, *, verify_as_at_start: bool = True) -> None:
        """`verify_as_at_start` False: of our own directories, what lies above the durable point is not
        looked at.

        Raises ConfigError if there is no such directory or it holds no log, StoreFailure if its file
        `member` is damaged. Other damage is listed in `damage`, and reading it raises.
        """
        self.path = path = path.rstrip("/") or "/"
        self._disk = disk
        self._files: dict[str, DiskFile] = {}
        try:
            record = load_member(disk, path)
            # In this order: what a running member adds meanwhile then lies behind what these promise.
            self._checkpoint = load_checkpoint(disk, path)
            durable = read_durable_point(disk, path)
            names = disk.list(path)
            files = list_segment_files(disk, path, DATA_NAME)
        except (NotADirectoryError, PermissionError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if record is None and not files and CURRTERM_NAME not in names:
            raise ConfigError(
                f"{path} holds no log: no file '{MEMBER_NAME}' and nothing in {path}/{DATA_NAME}"
            )
        self._units = units = IndexUnits(disk, path)
        self.in_use = disk.is_locked(f"{path}/lock")
        self.is_java = record is None
        self.checked = record is not None and record.checked
        self.group = record.group if record else ""
        self.member_id = record.member_id if record else ""
        self.directory_id = record.directory_id if record else ""
        self.formation = record.formation if record else Formation()
        self.hard_state: HardState | None = read_hard_state(disk, path)
        self.damage: list[Damage] = []
        self.durable_index = -1
        self.index_synced_position = 0
        self.quarantined: tuple[QuarantinedRange, ...] = ()
        """Entries that the member waits for, as it has noted them: in order, none above the durable
        point."""
        if record is None:
            sizes = Counter(file.size_bytes for file in files)
            self.segment_bytes = sizes.most_common(1)[0][0] if files else 0
            self.index_segment_bytes = units.segment_bytes
            self.hard_state = self.hard_state or HardState(0, None)
            extent = find_java_extent(disk, path, files, self.segment_bytes, units)
        else:
            self.segment_bytes = record.segment_bytes
            self.index_segment_bytes = record.index_segment_bytes
            if durable is not None:
                self.durable_index = durable.point.index
                self.index_synced_position = durable.index_synced_position
                quarantined = load_quarantine(disk, path, durable.point)
                if quarantined is None:
                    problem = "is unreadable: the next start checks every entry instead"
                    self.damage.append(Damage(HEALING_NAME, 0, -1, problem))
                self.quarantined = quarantined or ()
            for name, lost in (
                (HARD_STATE_NAME, self.hard_state is None),
                (DURABLE_NAME, durable is None),
            ):
                if lost:
                    self.damage.append(Damage(name, 0, -1, "is missing or unreadable"))
            extent = find_own_extent(
                disk,
                path,
                files,
                self.segment_bytes,
                units,
                durable,
                verify_tail=verify_as_at_start,
            )
        self.damage += extent.damage
        self.segments: tuple[LogSegment, ...] = extent.segments
        self.end: LogPoint = extent.end
        self.tail: str = extent.tail
        """What lies behind the end and will be cut by the next start; "" if nothing does."""
        self._first_indices = [segment.first_index for segment in self.segments]
        self._walked: tuple[int, SegmentScan] | None = None
        self.committed_index = self._proven_commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._units.close()
        for file in self._files.values():
            file.close()
        self._files.clear()

    # ---------------------------------------------------------------- what there is

    @property
    def ledger_begin_index(self) -> int:
        """-1 if the log holds no entry."""
        return self._first_indices[0] if self.segments else -1

    @property
    def ledger_end_index(self) -> int:
        return self.end.index

    @property
    def ledger_end_term(self) -> int:
        return self.end.term

    @property
    def entry_count(self) -> int:
        return self.end.index - self.ledger_begin_index + 1 if self.segments else 0

    def last_index_of(self, number: int) -> int:
        """Of a segment in `segments`."""
        following = number + 1 < len(self.segments)
        return self._first_indices[number + 1] - 1 if following else self.end.index

    def id_at(self, index: int) -> EntryId:
        return EntryId(index, self.header_at(index).term)

    def header_at(self, index: int) -> EntryHeader:
        """Raises IndexOutOfRange, or DirectoryDamaged if the entry is not where it should be."""
        return self._entry_at(index)[1]

    def _entry_at(self, index: int) -> tuple[int, EntryHeader]:
        """(position, header) of an entry."""
        self._check_range(index, index + 1)
        number = self._segment_of(index)
        segment = self.segments[number]
        unit = self._units.read(index, index + 1)[0]
        offset = int(unit["position"]) - segment.position
        if int(unit["index"]) == index and 0 <= offset <= segment.size_bytes - HEADER_BYTES:
            header = decode_entry_header(self._file(segment.name).pread(HEADER_BYTES, offset))
            if header is not None and (header.index, header.pos) == (index, segment.position + offset):
                return header.pos, header
        scan = self._walk(number)
        at = index - segment.first_index
        if at >= len(scan.sizes):
            raise self._damaged(segment, scan.end_position, index, scan)
        position = int(scan.positions[at])
        header = decode_entry_header(
            self._file(segment.name).pread(HEADER_BYTES, position - segment.position)
        )
        assert header is not None and header.index == index, (header, index)
        return position, header

    def _proven_commit(self) -> int:
        """Of our own directories only what the log holds exactly; DLedger caps it at the end."""
        checkpoint = self._checkpoint
        if checkpoint is None or not self.segments:
            return -1
        index = checkpoint.committed_index
        if self.is_java:
            return min(index, self.end.index)
        if not self.ledger_begin_index <= index <= self.end.index:
            return -1
        try:
            header = self.header_at(index)
        except DirectoryDamaged:
            return -1
        proven = (header.term, header.chain_crc) == (
            checkpoint.committed_term,
            checkpoint.committed_chain,
        )
        return index if proven else -1

    def index_units(self, first_index: int, stop_index: int) -> IndexArray:
        """As they are, `INDEX_DTYPE`; zeros where the index has none."""
        return self._units.read(first_index, stop_index)

    def read_bytes(self, segment: LogSegment, position: int, size_bytes: int) -> bytes:
        """Raw bytes of a segment; `position` is in the log."""
        return self._file(segment.name).pread(size_bytes, position - segment.position)

    # ---------------------------------------------------------------- reading

    def batches(
        self,
        first_index: int,
        stop_index: int,
        *,
        batch_bytes: int = 2 * MIB,
        check_bodies: bool = True,
        link_first: bool = True,
    ) -> Iterator[EntryBatch]:
        """Entries `first_index` .. `stop_index - 1` in batches of about `batch_bytes`, at least one
        entry each, in memory of their own. Structure, order and chain are always checked.

        `link_first` False: whether the first continues the one before is not asked, because that one
        is known to be bad.
        Raises IndexOutOfRange below the begin or above the end, DirectoryDamaged at the first entry
        that is not as it was written.
        """
        if first_index >= stop_index:
            return
        self._check_range(first_index, stop_index)
        place = self._place_before(first_index, link_first)
        while place.next_index < stop_index:
            number = self._segment_of(place.next_index)
            segment = self.segments[number]
            if place.next_index == segment.first_index:
                place = place._replace(position=segment.position)
            segment_stop = min(stop_index, self.last_index_of(number) + 1)
            while place.next_index < segment_stop:
                count = min(_WINDOW_UNITS, segment_stop - place.next_index)
                sizes = self._sizes_by_units(segment, place, count)
                if len(sizes) == 0:
                    sizes = self._sizes_by_walk(segment, place)[:count]
                for low, high in _cuts(sizes, batch_bytes):
                    batch = self._read_batch(segment, place, sizes[low:high], check_bodies)
                    if batch is None:
                        # The units or the data are wrong here. A walk tells which: it finds the good
                        # entries by the data alone, or raises for the first that is none.
                        walked = self._sizes_by_walk(segment, place)
                        low, high = next(_cuts(walked[: segment_stop - place.next_index], batch_bytes))
                        batch = self._read_batch(segment, place, walked[low:high], check_bodies)
                        assert batch is not None, (segment, place)
                        place = self._behind(batch, place)
                        yield batch
                        break
                    place = self._behind(batch, place)
                    yield batch
                    if batch.count < high - low:
                        break  # a bad body follows; the next round raises for it

    def _place_before(self, index: int, link_first: bool) -> _Place:
        position, header = self._entry_at(index)
        if link_first and index > self.ledger_begin_index:
            previous = self.header_at(index - 1)
            return _Place(index, position, previous.term, previous.chain_crc)
        return _Place(index, position, -1, header.chain_before if index else 0)

    def _behind(self, batch: EntryBatch, place: _Place) -> _Place:
        last = batch.headers()[-1]
        return _Place(
            place.next_index + batch.count,
            place.position + batch.total_bytes,
            int(last["term"]),
            int(last["chain_crc"]),
        )

    def _sizes_by_units(self, segment: LogSegment, place: _Place, count: int) -> Int64Array:
        """Sizes of the next entries as far as the units make sense: empty if the first does not."""
        units = self._units.read(place.next_index, place.next_index + count)
        sizes = units["size"].astype(np.int64)
        positions = place.position + np.cumsum(sizes) - sizes
        room_stop = segment.position + segment.size_bytes - BLANK_BYTES
        fits = (
            (units["index"] == np.arange(place.next_index, place.next_index + count))
            & (units["position"] == positions)
            & (sizes >= HEADER_BYTES)
            & (positions + sizes <= room_stop)
        )
        return sizes if bool(fits.all()) else sizes[: int(np.argmin(fits))]

    def _sizes_by_walk(self, segment: LogSegment, place: _Place) -> Int64Array:
        """Sizes of the good entries up to the segment's end, at least one. Raises DirectoryDamaged."""
        scan = scan_segment(
            self._file(segment.name).map_read_only(),
            segment.position,
            place.position,
            expected_index=place.next_index,
            previous_term=place.previous_term,
            previous_chain=place.previous_chain if self.checked else None,
            check_bodies=False,
            stop_position=max(self.end.position, place.position),
        )
        if len(scan.sizes) == 0:
            raise self._damaged(segment, place.position, place.next_index, scan)
        return scan.sizes

    def _read_batch(
        self, segment: LogSegment, place: _Place, sizes: Int64Array, check_bodies: bool
    ) -> EntryBatch | None:
        """None if these bytes are not the next entries of these sizes; with a bad body among them, only
        the entries before it. Raises DirectoryDamaged if the first body is bad."""
        total = int(sizes.sum())
        try:
            data = self._file(segment.name).pread(total, place.position - segment.position)
        except OSError as error:
            raise DirectoryDamaged(
                f"{self.path}/{segment.name}: {total} bytes at {place.position} cannot be read: {error}",
                path=segment.name,
                position=place.position,
                index=place.next_index,
            ) from error
        if len(data) < total:
            return None
        batch = EntryBatch(data, sizes)
        headers = batch.headers()
        if not self._continue_log(headers, sizes, batch.starts + place.position, place):
            return None
        if check_bodies:
            wrong = batch.body_crcs() != headers["body_crc"]
            if not self.checked:
                # DLedger writes no digests: both fields 0 means unchecked. Entries that it copied from
                # software that does carry them.
                wrong &= (headers["body_crc"] | headers["chain_crc"]) != 0
            if bool(wrong.any()):
                good = int(wrong.argmax())
                if good:
                    return batch.slice(0, good)
                raise DirectoryDamaged(
                    f"{self.path}/{segment.name}: body_crc does not match (position {place.position},"
                    f" index {place.next_index})",
                    path=segment.name,
                    position=place.position,
                    index=place.next_index,
                )
        return batch

    def _continue_log(
        self, headers: HeaderArray, sizes: Int64Array, positions: Int64Array, place: _Place
    ) -> bool:
        terms = headers["term"].astype(np.int64)
        magic = headers["magic"]
        return (
            bool((headers["size"] == sizes).all())
            and bool((headers["body_len"] == sizes - HEADER_BYTES).all())
            and bool(((magic == EntryKind.NORMAL) | (magic == EntryKind.NOOP)).all())
            and bool(
                (headers["index"] == np.arange(place.next_index, place.next_index + len(headers))).all()
            )
            and bool((headers["pos"] == positions).all())
            and int(terms[0]) >= place.previous_term
            and bool((terms[1:] >= terms[:-1]).all())
            and (
                not self.checked
                or bool((headers["chain_crc"] == chain_of(headers, place.previous_chain)).all())
            )
        )

    # ---------------------------------------------------------------- helpers

    def _check_range(self, first_index: int, stop_index: int) -> None:
        if not self.segments or first_index < self.ledger_begin_index or stop_index > self.end.index + 1:
            raise IndexOutOfRange(
                f"{self.path} holds entries {self.ledger_begin_index} to {self.end.index}, not"
                f" {first_index} to {stop_index - 1}",
                ledger_begin_index=self.ledger_begin_index,
                committed_index=self.committed_index,
            )

    def _segment_of(self, index: int) -> int:
        return bisect_right(self._first_indices, index) - 1

    def _walk(self, number: int) -> SegmentScan:
        """All entries of a segment found by structure alone; the last one walked is kept."""
        if self._walked is None or self._walked[0] != number:
            segment = self.segments[number]
            scan = scan_segment(
                self._file(segment.name).map_read_only(),
                segment.position,
                segment.position,
                expected_index=segment.first_index,
                previous_term=-1,
                previous_chain=None,
                check_bodies=False,
                stop_position=max(self.end.position, segment.position),
            )
            self._walked = (number, scan)
        return self._walked[1]

    def _file(self, name: str) -> DiskFile:
        return cached_file(self._disk, self.path, name, self._files)

    def _damaged(
        self, segment: LogSegment, position: int, index: int, scan: SegmentScan
    ) -> DirectoryDamaged:
        problem = scan.problem or f"the log has no entry {index} at {position}, where it should be"
        return DirectoryDamaged(
            f"{self.path}/{segment.name}: {problem} (position {position}, index {index})",
            path=segment.name,
            position=position,
            index=index,
        )


def _cuts(sizes: Int64Array, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """(low, high) of consecutive shares of at most `batch_bytes`, at least one entry each."""
    ends = np.cumsum(sizes)
    low, done = 0, 0
    while low < len(sizes):
        high = max(int(np.searchsorted(ends, done + batch_bytes, side="right")), low + 1)
        yield low, high
        low, done = high, int(ends[high - 1])
