"""What a file of an export holds: all of it is read and checked, and nothing of it kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from quorumlog.cli.carry.binary_file import BinaryFormat
from quorumlog.cli.carry.json_lines import JsonLines
from quorumlog.cli.carry.records import Ending, FileFormat, FileTorn, Record

FORMATS: dict[str, FileFormat] = {each.name: each for each in (BinaryFormat(), JsonLines())}
_SHOWN_EVERY = 4096


class Extent(NamedTuple):
    """Of a file whose every record is good."""

    group: str | None
    first_index: int | None
    records: int
    last: Record | None
    stop_position: int
    """Behind the last record."""
    ending: Ending | None
    """None: the file is torn."""
    torn: FileTorn | None

    @property
    def last_index(self) -> int:
        """Every entry up to here is in the file."""
        if self.ending is not None:
            return self.ending.last_index
        if self.last is not None:
            return self.last.index
        return -1 if self.first_index is None else self.first_index - 1


def format_of(file: BinaryIO, *, is_written_by_hand: bool = False) -> FileFormat | None:
    """By its first bytes; None: it is none of ours. `is_written_by_hand`: JSON, whatever comes first."""
    file.seek(0)
    found = file.read(16)
    for each in FORMATS.values():
        opening = b"{" if is_written_by_hand and each.name == "jsonl" else each.opening
        if found.startswith(opening):
            return each
    return None


def survey(
    file: BinaryIO,
    file_format: FileFormat,
    report: Callable[[int, int], None],
    see: Callable[[Record], None] = lambda record: None,
) -> Extent:
    """Reads the file through; `report` is told (position, size of the file) now and then, `see` is shown
    every record. Raises FileDamaged, and FileTorn where not even the head is whole."""
    size_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    reader = file_format.open(file)
    last: Record | None = None
    count = 0
    torn: FileTorn | None = None
    try:
        for record in reader.records():
            see(record)
            last = record
            count += 1
            if count % _SHOWN_EVERY == 0:
                report(record.stop_position, size_bytes)
    except FileTorn as error:
        torn = error
    stop_position = reader.head_bytes if last is None else last.stop_position
    return Extent(reader.group, reader.first_index, count, last, stop_position, reader.ending, torn)
