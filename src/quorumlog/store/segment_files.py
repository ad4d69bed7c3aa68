"""The segment files of a directory that is only looked at: which there are, and their index units.

Nothing here writes, locks or believes more than it has read (docs/formats.md, file naming, index file).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quorumlog.store.disk import Disk, DiskFile
from quorumlog.store.mmap_file_list import NAME_DIGITS
from quorumlog.store.segment_scan import INDEX_DTYPE, INDEX_UNIT_BYTES, IndexArray

MAX_OPEN_FILES = 64


class SegmentFile(NamedTuple):
    """A file named by the position of its first byte."""

    name: str
    """Relative to the directory, such as `data/00000000000000000000`."""
    position: int
    size_bytes: int


def list_segment_files(disk: Disk, directory: str, folder: str) -> list[SegmentFile]:
    """In order of position; names that are no position are not segments and left out."""
    files = []
    for name in disk.list(f"{directory}/{folder}"):
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit():
            try:
                size_bytes = disk.size_of(f"{directory}/{folder}/{name}")
            except FileNotFoundError:
                continue  # a running member has just cut it off
            files.append(SegmentFile(f"{folder}/{name}", int(name), size_bytes))
    return files


def cached_file(disk: Disk, directory: str, name: str, files: dict[str, DiskFile]) -> DiskFile:
    """The file of that name from `files`, opened if need be; the oldest is closed when many are open."""
    file = files.get(name)
    if file is None:
        if len(files) >= MAX_OPEN_FILES:
            files.pop(next(iter(files))).close()
        file = files[name] = disk.open(f"{directory}/{name}", writable=False)
    return file


class IndexUnits:
    """Index units by index, read with `pread`. A unit that is not there reads as zeros."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = list_segment_files(disk, directory, "index")
        self._open: dict[str, DiskFile] = {}

    @property
    def segment_bytes(self) -> int:
        """Length of the first index file; 0 if there is none."""
        return self._segments[0].size_bytes if self._segments else 0

    @property
    def stop_index(self) -> int:
        """Behind the last index that has room for a unit."""
        if not self._segments:
            return 0
        return (self._segments[-1].position + self._segments[-1].size_bytes) // INDEX_UNIT_BYTES

    def read(self, first_index: int, stop_index: int) -> IndexArray:
        """Shape (stop_index - first_index,), `INDEX_DTYPE`, writable and nobody else's."""
        assert 0 <= first_index <= stop_index, (first_index, stop_index)
        units = np.zeros(stop_index - first_index, INDEX_DTYPE)
        if len(units) == 0:
            return units
        target = units.view(np.uint8).data
        first = first_index * INDEX_UNIT_BYTES
        stop = stop_index * INDEX_UNIT_BYTES
        for segment in self._segments:
            low = max(first, segment.position)
            high = min(stop, segment.position + segment.size_bytes)
            if low < high:
                file = cached_file(self._disk, self._directory, segment.name, self._open)
                file.pread_into(target[low - first : high - first], low - segment.position)
        return units

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
