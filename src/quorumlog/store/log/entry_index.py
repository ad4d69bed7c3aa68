"""EntryIndex: where each entry lies, from memory for the last ones and from the index files for others.

Every unit that comes from a file is checked before it is believed; it can still name a wrong place
that looks right, so whoever reads the entry compares its header.
"""

from __future__ import annotations

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.log.placement import Placement, problem_of_units
from quorumlog.store.log.recent_units import RecentUnits
from quorumlog.store.log.segment import Segment
from quorumlog.store.log.segment_list import SegmentList
from quorumlog.store.log.segment_scan import INDEX_DTYPE, INDEX_UNIT_BYTES, IndexArray, index_units_of


class LogEnds:
    """Written by the store's thread only. Another thread reads one field at a time, and looks again at
    `truncations` before it believes what it has found."""

    def __init__(self, begin: LogPoint, end: LogPoint) -> None:
        """Everything up to `end` is on disk."""
        self.begin = begin
        self.end = end
        self.durable = end
        self.truncations = 0


class EntryIndex:
    """The index files of a log, with the data files for their headers."""

    def __init__(self, directory: str, files: SegmentList, data: SegmentList, ends: LogEnds) -> None:
        self.files = files
        self.recent = RecentUnits(ends.end.index + 1)
        self._directory = directory
        self._data = data
        self._ends = ends

    def append(self, batch: EntryBatch, placement: Placement) -> list[Segment]:
        """Write the units of a batch; returns the files written. Raises StoreFailure."""
        first_index = self.recent.stop_index
        if batch.count == 1:
            header = batch.first_header
            data = self.recent.add_one(header, placement.end_position - header.size)
        else:
            headers = batch.headers()
            units = index_units_of(headers, placement.positions)
            self.recent.add(units, headers["chain_crc"].astype(np.uint32))
            data = units.tobytes()
        position = first_index * INDEX_UNIT_BYTES
        reserved = self.files.reserved_position
        assert position + len(data) <= reserved, (position, len(data), reserved)
        return self.files.write(data, position)

    def check_held(self, index: int) -> None:
        begin_index, end_index = self._ends.begin.index, self._ends.end.index
        if not begin_index < index <= end_index:
            raise IndexOutOfRange(
                f"entry {index} is not held: the log is {begin_index + 1} .. {end_index}",
                ledger_begin_index=begin_index + 1,
            )

    def units(self, first_index: int, stop_index: int) -> IndexArray:
        """Shape (stop_index - first_index,); good until the next append.

        Raises IndexOutOfRange, DirectoryDamaged.
        """
        self.check_held(first_index)
        self.check_held(stop_index - 1)
        if first_index >= self.recent.first_index:
            return self.recent.units(first_index, stop_index)
        return self.units_on_disk(first_index, stop_index)

    def units_on_disk(self, first_index: int, stop_index: int) -> IndexArray:
        """Of entries that are held, from the files; any thread. Raises DirectoryDamaged."""
        units = self.file_units(first_index, stop_index)
        wrong, problem = problem_of_units(
            units, first_index, self._data.segment_bytes, self._ends.end.position
        )
        if len(units) < stop_index - first_index and wrong < 0:
            wrong, problem = len(units), "the index file ends before the log"
        if wrong >= 0:
            index = first_index + wrong
            position = index * INDEX_UNIT_BYTES
            raise self.damage(self.files.path_of(position), position, index, problem)
        return units

    def file_units(self, first_index: int, stop_index: int) -> IndexArray:
        """As the files have them, unchecked; fewer where the files end. Any thread.

        Raises DirectoryDamaged if the disk cannot read them.
        """
        position = first_index * INDEX_UNIT_BYTES
        try:
            data = self.files.pread((stop_index - first_index) * INDEX_UNIT_BYTES, position)
        except OSError as error:
            path, problem = self.files.path_of(position), f"cannot be read: {error}"
            raise self.damage(path, position, first_index, problem) from error
        return np.frombuffer(data, INDEX_DTYPE, len(data) // INDEX_UNIT_BYTES)

    def chain_of(self, unit: IndexArray) -> int:
        """chain_crc from the data header that a unit of shape (1,) names; the two must agree.

        Raises DirectoryDamaged.
        """
        index, position = int(unit["index"][0]), int(unit["position"][0])
        path = self._data.path_of(position)
        try:
            data = self._data.pread(HEADER_BYTES, position)
        except OSError as error:
            raise self.damage(path, position, index, f"cannot be read: {error}") from error
        if len(data) == HEADER_BYTES:
            header = unpack_header(data)
            fields = (header.magic, header.pos, header.size, header.index, header.term)
            if fields == unit[0].item():
                return header.chain_crc
        raise self.damage(path, position, index, "the header is not what the index says")

    def damage(self, path: str, position: int, index: int, problem: str) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{path}: {problem} (position {position}, entry {index});"
            f" run: quorumlog verify {self._directory}",
            path=path,
            position=position,
            index=index,
        )
