"""DirectoryReader: a member's directory, ours or a Java DLedger member's, opened only to look.

Opening is the survey that a start makes (survey.py; java_survey.py for Java's rules): it reads one
header per segment and the tail. Entries are checked when they are read, a batch at a time: index units
say where they should lie; where the units are wrong, the data decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Self

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.entry import EntryId, Formation, HardState
from quorumlog.entry_header import EntryHeader, unpack_header
from quorumlog.errors import ConfigError, DirectoryDamaged, IndexOutOfRange, StoreFailure
from quorumlog.store.directory_kind import DirectoryKind, refuse_other_kinds
from quorumlog.store.disk import Disk, is_no_damage, not_allowed, refusal
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME, load_checkpoint
from quorumlog.store.files.damaged_ranges import damaged_name, load_damaged
from quorumlog.store.files.durable_file import (
    DURABLE_NAME,
    DURABLE_ORIGIN,
    read_durable_owner,
    read_durable_point,
)
from quorumlog.store.files.hard_state_file import CURRTERM_NAME, HARD_STATE_NAME, read_hard_state
from quorumlog.store.files.member_file import MEMBER_NAME, MemberRecord, load_member
from quorumlog.store.files.start_file import START_NAME, load_start
from quorumlog.store.ledger_store import LOG_ORIGIN, DamagedRange, LogPoint, LogStart
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.log.segment_scan import IndexArray
from quorumlog.store.log.segment_view import (
    MAX_INDEX,
    MAX_POSITION,
    UNIT_CHUNK,
    IndexUnits,
    SegmentView,
    header_at,
    list_segment_files,
    read_pages,
)
from quorumlog.store.offline.java_survey import survey_java
from quorumlog.store.offline.log_begin import newest_border
from quorumlog.store.offline.log_extent import Damage, LogExtent, LogSegment
from quorumlog.store.offline.missing_entries import missing_entries
from quorumlog.store.offline.own_survey import survey_own
from quorumlog.store.offline.small_files import damage_of_small_files
from quorumlog.store.offline.stored_entries import Place, Stop, StoredEntries
from quorumlog.store.repair.survey_files import begin_path, lacks_start

MAX_LOOKS = 4
"""At a log that looks damaged while its member moves the durable point."""


class DirectoryReader:
    """Read-only; a context manager, for one thread. Indices name entries (-1: none); `ledger_end_index`
    is what a start would keep."""

    is_java: bool
    """No entry need carry digests, and no file says whose it is."""
    checked: bool
    """Every entry carries both digests."""
    in_use: bool
    """A running member holds the directory: its log may grow, or be cut, while it is read here."""

    def __init__(self, disk: Disk, path: str, *, surveyed_index: int = -1) -> None:
        """Raises ConfigError if there is no such directory or it holds no log, StoreFailure if its file
        `member` is damaged. Other damage is listed in `damage`, but for what another reader of this
        directory was told up to `surveyed_index`; entries are checked all the same when they are
        read."""
        self.path = path = path.rstrip("/") or "/"
        self._disk = disk
        self._surveyed_index = surveyed_index
        self.damage: list[Damage] = []
        self.durable_index = -1
        self.index_synced_position = 0
        self.begin = LOG_ORIGIN  # of a Java directory, which does not tell
        self.start: LogStart | None = None
        self.damaged: tuple[DamagedRange, ...] = ()
        """What the member has noted as lost: in order, none above the durable point."""
        try:
            record = load_member(disk, path)
            # In this order: what a running member adds meanwhile then lies behind what these promise.
            self._checkpoint = load_checkpoint(disk, path)
            self._durable = read_durable_point(disk, path)
            self._look_at_small_files(disk.list(path), record)
            self.in_use = disk.is_locked(f"{path}/lock")
            self.is_java = record is None
            self.checked = record is not None and record.checked
            self.group = record.group if record else ""
            self.member_id = record.member_id if record else ""
            self.directory_id = record.directory_id if record else ""
            self.formation = record.formation if record else Formation()
            self.hard_state: HardState | None = read_hard_state(disk, path)
            extent = self._java_extent() if record is None else self._own_extent(record)
        except NotADirectoryError as error:
            raise ConfigError(
                f"{path} holds no log: a part of the path {error.filename} is a file, not a directory;"
                " name the data directory of a member"
            ) from error
        except PermissionError as error:
            raise ConfigError(not_allowed(path, error)) from error
        except OSError as error:
            failure = ConfigError if is_no_damage(error) else StoreFailure
            raise failure(refusal(path, "read", error)) from error
        self.damage += extent.damage
        self.segments: tuple[LogSegment, ...] = extent.segments
        self.end: LogPoint = extent.end
        self.tail: str = extent.tail
        """What the next start will cut; "" if nothing."""
        self._first_indices = [segment.first_index for segment in self.segments]
        self._entries = StoredEntries(self._data, self._units, checked=self.checked)
        self._structure = StoredEntries(self._data, self._units, checked=False)
        self._walked = Place(-1, 0, -1, 0)
        is_replaced = self.start is not None and self.start.replaces
        self.missing = missing_entries(
            self._data, self._units, extent, self._checkpoint, None if is_replaced else self._durable
        )
        """Committed entries that should lie behind the end and do not; None if there are none."""
        self.damage += [] if self.missing is None else [self.missing]
        self.committed_index = -1
        border = -1 if self.is_java else newest_border(disk, path, self.header_at)
        self.committed_index, self.readable_index = (max(i, border) for i in self._judge_checkpoint())
        """As a start takes it from the checkpoint, or a saved state; and the last entry at or below the
        one that either names, where nothing shows that it is of another log."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._units.segments.close()
        self._data.close()

    # ---------------------------------------------------------------- opening

    def _look_at_small_files(self, names: list[str], record: MemberRecord | None) -> None:
        has_segments = bool(list_segment_files(self._disk, self.path, DATA_NAME))
        if record is None and not has_segments:
            refuse_other_kinds(self._disk, self.path, DirectoryKind.MEMBER, DirectoryKind.JAVA_LOG)
        if record is None and not has_segments and not {CURRTERM_NAME, CHECKPOINT_NAME} & set(names):
            raise ConfigError(
                f"{self.path} holds no log: no file '{MEMBER_NAME}' and nothing in"
                f" {self.path}/{DATA_NAME}"
            )
        self.damage += damage_of_small_files(self._disk, self.path)

    def _java_extent(self) -> LogExtent:
        files = list_segment_files(self._disk, self.path, DATA_NAME)
        index_files = list_segment_files(self._disk, self.path, INDEX_NAME)
        sizes = Counter(file.size_bytes for file in files if file.size_bytes)
        distances = {later.position - file.position for file, later in pairwise(files)}
        # Files that are too few to outvote a damaged one: what their names say, else the longest.
        self.segment_bytes = max(
            sizes, key=lambda size: (sizes[size], size in distances, size), default=0
        )
        self.index_segment_bytes = index_files[0].size_bytes if index_files else 0
        self.hard_state = self.hard_state or HardState(0, None)
        self._data = SegmentView(self._disk, f"{self.path}/{DATA_NAME}", files, self.segment_bytes)
        index = SegmentView(
            self._disk, f"{self.path}/{INDEX_NAME}", index_files, self.index_segment_bytes
        )
        self._units = IndexUnits(index)
        committed_index = MAX_INDEX if self._checkpoint is None else self._checkpoint.committed_index
        return survey_java(self._data, self._units, files, committed_index)

    def _own_extent(self, record: MemberRecord) -> LogExtent:
        self.segment_bytes = record.segment_bytes
        self.index_segment_bytes = record.index_segment_bytes
        start = load_start(self._disk, self.path)
        for look in count(1):
            extent = self._own_extent_from(start, record)
            newer_start, newer = load_start(self._disk, self.path), self._durable
            if extent.damage and look < MAX_LOOKS:
                newer = read_durable_point(self._disk, self.path)
            if (newer_start, newer) == (start, self._durable):
                break
            self.close()  # a running member has dropped entries meanwhile, or may have cut the log
            start, self._durable = newer_start, newer
        # Without the file it was read from Java's `currterm`, which no start of ours trusts.
        has_hard_state = self._disk.exists(f"{self.path}/{HARD_STATE_NAME}")
        for name, is_lost in (
            (HARD_STATE_NAME, self.hard_state is None or not has_hard_state),
            (DURABLE_NAME, self._durable is None),
        ):
            if is_lost:
                self.damage.append(Damage(name, 0, -1, "is missing or unreadable"))
        # A backup gets its term when it is complete, a directory that is recovered at its next start.
        is_promised = bool(record.member_id) and record.recovery is None
        owner = read_durable_owner(self._disk, self.path)
        if is_promised and owner not in ("", record.directory_id):
            problem = (
                f"is of directory {record.directory_id} of {record.member_id}, and {DURABLE_NAME} of"
                f" directory {owner}: one of them is another member's, or an older copy"
            )
            self.damage.append(Damage(MEMBER_NAME, 0, -1, problem))
        if is_promised and self._lacks_promise(extent.end.term):
            problem = (
                f"is of term {self.hard_state.term if self.hard_state else 0}, and the log has entries"
                f" of term {extent.end.term}: this file is an older copy, or the last segment is of"
                " another member"
            )
            self.damage.append(Damage(HARD_STATE_NAME, 0, -1, problem))
        if lacks_start(self._disk, self.path, record):
            problem = "is missing: nothing tells where the log begins"
            self.damage.append(Damage(START_NAME, 0, -1, problem))
        return extent

    def _lacks_promise(self, term: int) -> bool:
        """Has the log entries of a term that `hardstate` has never seen? It is written first."""
        if self.hard_state is not None and self.hard_state.term < term:
            self.hard_state = read_hard_state(self._disk, self.path)  # a running member may have written
        return self.hard_state is not None and self.hard_state.term < term

    def _own_extent_from(self, start: LogStart | None, record: MemberRecord) -> LogExtent:
        known = self._durable or DURABLE_ORIGIN
        self.durable_index = known.point.index
        self.index_synced_position = known.index_synced_position
        self.start, self.begin = start, LOG_ORIGIN if start is None else start.point
        if start is not None and start.replaces:
            self._checkpoint, self.durable_index = None, self.begin.index  # they are of another log
        damaged = load_damaged(self._disk, self.path, known.point, start, begin_path(self.begin))
        self.damaged = damaged or ()
        extent, self._data, self._units = survey_own(
            self._disk, self.path, record, known, damaged, start, self._surveyed_index
        )
        if damaged is None:
            problem = "is unreadable: the next start checks every entry instead"
            unreadable = Damage(damaged_name(self._disk, self.path), 0, -1, problem)
            extent = extent._replace(damage=(unreadable, *extent.damage))
        return extent

    def _judge_checkpoint(self) -> tuple[int, int]:
        """(committed index, readable index). Of our own directories only what the log holds exactly is
        committed; where its entry is damaged or gone nothing contradicts it. DLedger caps it at the
        end."""
        checkpoint = self._checkpoint
        proven = self.begin.index  # what was dropped was committed
        if checkpoint is None or self.entry_count == 0:
            return proven, proven
        index = checkpoint.committed_index
        last_index = min(index, self.end.index)
        if self.is_java:
            return last_index, last_index
        if not proven < index <= self.end.index:
            return proven, max(proven, last_index)
        known = (self.end, *(each.last for each in self.damaged))
        point = next(((each.term, each.chain) for each in known if each.index == index), None)
        if point is None:
            try:
                header = self.header_at(index)
            except DirectoryDamaged:
                return proven, last_index
            point = (header.term, header.chain_crc)
        is_held = point == (checkpoint.committed_term, checkpoint.committed_chain)
        return (index, index) if is_held else (proven, proven)

    # ---------------------------------------------------------------- what there is

    @property
    def ledger_begin_index(self) -> int:
        """-1 if the log never held an entry. Our own begin at 0 or where the file `start` says, also
        where the first files are gone."""
        if not self.is_java:
            return self.begin.index + 1 if self.end.index >= 0 else -1
        return self._first_indices[0] if self.segments else -1

    @property
    def ledger_end_index(self) -> int:
        return self.end.index

    @property
    def ledger_end_term(self) -> int:
        return self.end.term

    @property
    def named_stop_index(self) -> int:
        """Behind the last entry that the log has, or should have."""
        return self.missing.stop_index if self.missing is not None else self.end.index + 1

    @property
    def entry_count(self) -> int:
        return self.end.index - self.ledger_begin_index + 1 if self.ledger_begin_index >= 0 else 0

    def last_index_of(self, number: int) -> int:
        """Of a segment in `segments`."""
        following = number + 1 < len(self.segments)
        return self._first_indices[number + 1] - 1 if following else self.end.index

    def last_header_of(self, number: int) -> EntryHeader | None:
        """None if that entry cannot be read, or lies in a segment that is not listed."""
        segment, index = self.segments[number], self.last_index_of(number)
        try:
            header = self.header_at(index) if index >= segment.first_index else None
        except DirectoryDamaged:
            return None
        stop = segment.position + segment.size_bytes
        return header if header is not None and segment.position <= header.pos < stop else None

    def id_at(self, index: int) -> EntryId:
        return EntryId(index, self.header_at(index).term)

    def header_at(self, index: int) -> EntryHeader:
        """Raises IndexOutOfRange, or DirectoryDamaged if the entry is not where it should be."""
        self._check_range(index, index + 1)
        return self._header_by_unit(index) or self._header_by_walk(index)

    def index_units(self, first_index: int, stop_index: int) -> IndexArray:
        """As they are, `INDEX_DTYPE`; zeros where the index has none."""
        return self._units.read(first_index, stop_index)

    def unreadable_units(self) -> list[Damage]:
        index = self._units.segments
        return [
            Damage(index.name_of(page.position), page.position, -1, page.problem)
            for page in self._units.unreadable.values()
        ]

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Raw bytes of the log; zeros where the disk cannot read them."""
        return read_pages(self._data, size_bytes, position)[0]

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
        entry each, in memory of their own. Structure, order and chain are always checked, the link to
        the entry before the first unless `link_first` is False.

        Raises IndexOutOfRange, DirectoryDamaged at the first entry that is not as it was written.
        """
        if first_index >= stop_index:
            return
        self._check_range(first_index, stop_index)
        place = self._place_before(first_index, link_first)
        while place.next_index < stop_index:
            got = self._entries.next_batch(place, stop_index, batch_bytes, check_bodies=check_bodies)
            if isinstance(got, Stop):
                place = self._in_next_segment(place, got)
            else:
                place = self._entries.behind(got, place)
                yield got

    def pieces(self, first_index: int, stop_index: int) -> Iterator[EntryBatch | Damage]:
        """As `batches`, going on behind what is damaged where the index leads past it: each gap is a
        Damage, whose `stop_index` says where reading goes on."""
        if not self.segments and self.missing is not None:
            yield self.missing
            return
        is_linked = True
        while first_index < stop_index:
            try:
                for batch in self.batches(first_index, stop_index, link_first=is_linked):
                    yield batch
                    first_index, is_linked = batch.last_index + 1, True
            except DirectoryDamaged as error:
                if error.index >= first_index:
                    # `path: text (position P, index I)` says the place twice; the fields are enough.
                    text = str(error).removeprefix(f"{self.path}/{error.path}: ").partition(" (pos")[0]
                    next_index = self._next_readable(error.index + 1, stop_index)
                    yield Damage(error.path, error.position, error.index, text, next_index)
                    first_index = next_index
                is_linked = False

    def _next_readable(self, first_index: int, stop_index: int) -> int:
        """The first entry that lies where its unit says, or begins a segment; else `stop_index`."""
        at = bisect_right(self._first_indices, first_index - 1)
        if at < len(self.segments):
            stop_index = min(stop_index, self._first_indices[at])
        index = first_index
        while index < min(stop_index, self._units.stop_index):
            chunk_stop = min(index + UNIT_CHUNK, stop_index, self._units.stop_index)
            units = self._units.read(index, chunk_stop)
            for number in np.flatnonzero(units["index"] == np.arange(index, chunk_stop)).tolist():
                if self._header_by_unit(index + number) is not None:
                    return index + int(number)
            index = chunk_stop
        return stop_index

    def _place_before(self, index: int, link_first: bool) -> Place:
        header = self.header_at(index)
        if link_first and not self.is_java and index == self.begin.index + 1:
            return Place(index, header.pos, self.begin.term, self.begin.chain)
        if link_first and index > self.ledger_begin_index:
            previous = self.header_at(index - 1)
            return Place(index, header.pos, previous.term, previous.chain_crc)
        return Place(index, header.pos, -1, header.chain_before if index else 0)

    def _in_next_segment(self, place: Place, stop: Stop) -> Place:
        """Where the log goes on if its segment ends at `place`. A blank record that is not there,
        between two entries that are linked, loses none of them. Raises DirectoryDamaged."""
        next_base = self._data.base_of(place.position) + self._data.segment_bytes
        header = header_at(self._data, next_base)
        is_next = header is not None and header.index == place.next_index
        if header is not None and self.checked:
            is_next &= header.chain_before == place.previous_chain
        if not is_next:
            raise self._nothing_at(place, place.next_index, stop)
        return place._replace(position=next_base)

    def _header_by_unit(self, index: int) -> EntryHeader | None:
        unit = self._units.read(index, index + 1)[0]
        position = int(unit["position"])
        if int(unit["index"]) != index or not 0 <= position < MAX_POSITION:
            return None
        header = header_at(self._data, position)
        return header if header is not None and header.index == index else None

    def _header_by_walk(self, index: int) -> EntryHeader:
        """By structure alone, from the begin of the segment or where the last such walk ended. Raises
        DirectoryDamaged."""
        if not self.segments or index < self._first_indices[0]:
            raise self._damaged(self.begin.position, index, "no file holds the begin of the log")
        segment = self.segments[max(bisect_right(self._first_indices, index) - 1, 0)]
        place = Place(segment.first_index, segment.first_position, -1, 0)
        if segment.first_index <= self._walked.next_index <= index:
            place = self._walked
        while True:
            got = self._structure.next_batch(place, index + 1, 2 * MIB, check_bodies=False)
            if isinstance(got, Stop):
                raise self._nothing_at(place, index, got)
            if got.last_index == index:
                offset = int(got.starts[-1])
                self._walked = Place(index, place.position + offset, -1, 0)
                return unpack_header(got.buffer, offset)
            place = self._structure.behind(got, place)

    # ---------------------------------------------------------------- helpers

    def _check_range(self, first_index: int, stop_index: int) -> None:
        if (
            self.ledger_begin_index < 0
            or first_index < self.ledger_begin_index
            or stop_index > self.named_stop_index
        ):
            raise IndexOutOfRange(
                f"{self.path} holds entries {self.ledger_begin_index} to {self.end.index}, not"
                f" {first_index} to {stop_index - 1}",
                ledger_begin_index=self.ledger_begin_index,
                committed_index=self.committed_index,
            )

    def refusal(self, damage: Damage) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{self.path}/{damage.path}: {damage.problem} ({damage.place})",
            path=damage.path,
            position=damage.position,
            index=damage.index,
        )

    def _nothing_at(self, place: Place, index: int, stop: Stop) -> DirectoryDamaged:
        """Behind a good blank record it is the next segment that should go on with the entry."""
        position = place.position
        if stop.is_blank and not stop.problem:
            position = self._data.base_of(position) + self._data.segment_bytes
        return self._damaged(position, index, stop.problem)

    def _damaged(self, position: int, index: int, problem: str) -> DirectoryDamaged:
        problem = problem or f"the log has no entry {index} at {position}, where it should be"
        return self.refusal(Damage(self._data.name_of(position), position, index, problem))
