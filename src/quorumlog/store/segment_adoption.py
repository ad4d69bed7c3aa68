"""SegmentAdoption: what a start makes of the segment files that it finds, before it looks into them.

The contiguous run of segments is adopted, each made as long as it should be; what does not belong to it
is set aside in `quarantine/`. Below the durable point a file that is missing or short is made again:
zeros, and `lost_from` says where what no file holds begins. Above it such a file is what an unfinished
creation or cut has left.
"""

from __future__ import annotations

from quorumlog.config import StoreConfig
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DurableFile, DurablePoint
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.mmap_file import MmapFile, is_lack_of_space
from quorumlog.store.mmap_file_list import (
    DATA_NAME,
    INDEX_NAME,
    NAME_DIGITS,
    MmapFileList,
    segment_name,
)
from quorumlog.store.segment_scan import INDEX_UNIT_BYTES
from quorumlog.store.set_aside import SetAside

_CHUNK_BYTES = 4 << 20


class SegmentAdoption:
    """The files of one start; the caller closes `data` and `index`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        durable_file: DurableFile,
        known: DurablePoint,
        begin: LogPoint,
    ) -> None:
        self.lines: list[str] = []
        """What was found and done, in sentences."""
        self.kept_aside: list[str] = []
        """Where what does not belong to the log has gone."""
        self.trusted_stop_index = known.point.index + 1
        """From here on the units read as zeros, because their file was short."""
        self.lost_from = known.point.position
        """First byte at or below the durable point that no file holds any more."""
        self.verifies_bodies = False
        """Something was lost: what the headers say of the rest is not enough."""
        self._disk = disk
        self._durable_file = durable_file
        self._durable = known.point
        self._index_synced_position = known.index_synced_position
        self._set_aside_folder = SetAside(disk, directory, config)
        first_unit_position = (begin.index + 1) * INDEX_UNIT_BYTES
        index_bytes = config.index_segment_bytes
        self.data = MmapFileList(disk, f"{directory}/{DATA_NAME}", config.segment_bytes, begin.position)
        self.index = MmapFileList(
            disk,
            f"{directory}/{INDEX_NAME}",
            index_bytes,
            first_unit_position // index_bytes * index_bytes,
        )

    def adopt(self) -> None:
        """Raises OSError, DiskFull."""
        self._open_data()
        self._open_index()

    # ---------------------------------------------------------------- data

    def _open_data(self) -> None:
        """Adopt the contiguous run of whole segments; what is not part of it must lie above the
        durable point. Below it, what is missing is made again: zeros that belong to no entry."""
        files = self.data
        for base in self._segment_bases(files):
            path = files.path_of(base)
            self._make_again_up_to(min(base, self._durable.position))
            if base != files.end_position:
                self.lines.append(f"{path} has no segment before it and is above the durable point")
                self._set_aside(path, f"{DATA_NAME}-{segment_name(base)}")
                continue
            length = self._disk.size_of(path)
            if length > files.segment_bytes and base < self._durable.position:
                self.lines.append(f"{path} has {length} bytes: what does not belong was cut off")
                self._cut_off(files, path, base, length)
                length = files.segment_bytes
            if length > files.segment_bytes:
                self.lines.append(f"{path} has {length} bytes and is above the durable point")
                self._set_aside(path, f"{DATA_NAME}-{segment_name(base)}")
                continue
            lost = base + length < min(files.end_position + files.segment_bytes, self._durable.position)
            if length == 0 and not lost:
                self.lines.append(f"{path} has no bytes: an unfinished creation, removed")
                self._disk.unlink(path)
                self._disk.sync_directory(files.directory)
                continue
            if length != files.segment_bytes and not lost:
                # A start that was interrupted between the two steps of a cut. What is left of the
                # file may be whole entries: in `flush = async` they count after a process crash.
                self.lines.append(f"{path} has {length} bytes: an unfinished cut, made whole again")
            if lost:
                self.lines.append(f"{path} has {length} bytes: made whole again, its entries are lost")
                self._lose_from(base + length)
            files.adopt(self._opened(path, base, files.segment_bytes, length))
            if lost:
                self._reserve(files.files[-1])
        self._make_again_up_to(self._durable.position)

    def _make_again_up_to(self, position: int) -> None:
        while self.data.end_position < position:
            self._lose_from(self.data.end_position)
            file = self.data.create_next()
            self.lines.append(f"{file.path} is missing: made again, its entries are lost")
            self._reserve(file)

    def _lose_from(self, position: int) -> None:
        """Should this start not come to its end, the next one finds a file of full length: it has to
        look for entries in it."""
        if position < self.lost_from:
            self.lost_from = position
            self.verifies_bodies = True  # half an entry may be left in front of the loss
            self.record_known()

    def record_known(self) -> None:
        """The durable point that was found, in both slots and synced."""
        synced_position = min(self._index_synced_position, self.lost_from)
        self._durable_file.record_both_synced(DurablePoint(self._durable, synced_position))

    def _reserve(self, file: MmapFile) -> None:
        """Healing must not run out of space halfway."""
        file.reserve(file.base_position, file.end_position)

    def _cut_off(self, files: MmapFileList, path: str, base: int, length: int) -> None:
        size_bytes = files.segment_bytes
        file = MmapFile.open(self._disk, path, base, length)
        try:
            prefix = "" if files is self.data else f"{INDEX_NAME}-"
            self.copy_aside(file, base + size_bytes, base + length, prefix)
        finally:
            file.retire()
        whole = MmapFile.open(self._disk, path, base, size_bytes)
        whole.discard_from(whole.end_position)
        whole.sync()
        whole.retire()

    # ---------------------------------------------------------------- index

    def _open_index(self) -> None:
        """The index can be made again from the data, so nothing about its files is damage."""
        files = self.index
        for base in self._segment_bases(files):
            path = files.path_of(base)
            length = self._disk.size_of(path)
            # What is left of the index says where entries lie, should the data not.
            self._make_index_again_up_to(base)
            if length > files.segment_bytes and base == files.end_position:
                self.lines.append(f"{path} has {length} bytes: what does not belong was cut off")
                self._cut_off(files, path, base, length)
                length = files.segment_bytes
            if base != files.end_position:
                self.lines.append(f"{path} ({length} bytes) does not continue the index, set aside")
                self._set_aside(path, f"{INDEX_NAME}-{segment_name(base)}")
                continue
            if length < files.segment_bytes:
                stop_index = (base + length) // INDEX_UNIT_BYTES
                self.trusted_stop_index = min(self.trusted_stop_index, stop_index)
            files.adopt(self._opened(path, base, files.segment_bytes, length))
        self._make_index_again_up_to((self._durable.index + 1) * INDEX_UNIT_BYTES)

    def _make_index_again_up_to(self, position: int) -> None:
        files = self.index
        while files.end_position < min(position, (self._durable.index + 1) * INDEX_UNIT_BYTES):
            stop_index = files.end_position // INDEX_UNIT_BYTES
            self.trusted_stop_index = min(self.trusted_stop_index, stop_index)
            files.create_next()

    # ---------------------------------------------------------------- both

    def _segment_bases(self, files: MmapFileList) -> list[int]:
        """Positions that the names give; any other name is moved out of the way."""
        bases = []
        for name in self._disk.list(files.directory):
            is_segment = len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
            if is_segment and int(name) % files.segment_bytes == 0:
                bases.append(int(name))
                continue
            path = f"{files.directory}/{name}"
            self.lines.append(f"{path} is not a segment, set aside")
            self._set_aside(path, f"{files.directory.rpartition('/')[2]}-{name}")
        return bases

    def _opened(self, path: str, base: int, size_bytes: int, length: int) -> MmapFile:
        file = MmapFile.open(self._disk, path, base, size_bytes)
        if length != size_bytes:
            file.discard_from(base + length)
            file.sync()
        return file

    def _set_aside(self, path: str, name: str) -> None:
        self.kept_aside.append(self._set_aside_folder.take(path, name))

    def copy_aside(self, file: MmapFile, first: int, stop: int, prefix: str = "") -> None:
        """Lack of space for the copy stops nothing: what is cut was acknowledged by nobody."""
        target = ""
        try:
            target = self._set_aside_folder.new_name(prefix + segment_name(first))
            copy = self._disk.open(target, create=True)
            try:
                for start in range(first, stop, _CHUNK_BYTES):
                    copy.pwritev([file.pread(min(_CHUNK_BYTES, stop - start), start)], start - first)
                copy.sync()
            finally:
                copy.close()
            self._set_aside_folder.came()
        except OSError as error:
            if not is_lack_of_space(error):
                raise
            if target and self._disk.exists(target):
                self._disk.unlink(target)
            self.lines.append(f"no space to keep {stop - first} cut bytes of {file.path} aside")
            return
        self.kept_aside.append(target)
