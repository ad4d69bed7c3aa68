"""What a file of an export holds, whichever its format; and how it may be broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

import msgspec

from quorumlog.entry import Entry


class Record(msgspec.Struct, frozen=True, gc=False):
    """An entry of the log that was exported, and where in the file its record ends."""

    index: int
    term: int
    body: bytes
    stop_position: int


class Ending(NamedTuple):
    """What stands behind the last record."""

    records: int
    last_index: int
    """The export holds every entry up to here; above the last record's index if no-ops follow it."""


class FileBroken(Exception):
    """A file that is not whole: `problem` at `position`, behind `records` whole records."""

    def __init__(self, problem: str, position: int, records: int) -> None:
        super().__init__(f"{problem}, at position {position} behind {records} whole records")
        self.position = position


class FileDamaged(FileBroken):
    """What stands there was not written by an export."""


class FileTorn(FileBroken):
    """It ends too early: a record or the end is missing, what there is is good."""


class Reader(Protocol):
    """A file that was opened for reading, its head already read."""

    group: str | None
    """None: the format does not tell."""
    first_index: int | None
    """Where the export begins; None: the format does not tell."""
    head_bytes: int
    """The first record begins here."""
    ending: Ending | None
    """Once every record was given."""

    def records(self) -> Iterator[Record]:
        """In order, from the first on. Raises FileDamaged and FileTorn, where the damage is."""
        ...


class FileFormat(Protocol):
    name: str
    opening: bytes
    """Every file that this format wrote begins so."""

    def open(self, file: BinaryIO) -> Reader:
        """Raises FileDamaged and FileTorn."""
        ...

    def head(self, group: str, first_index: int) -> bytes: ...

    def encoded(self, entries: Iterable[Entry]) -> bytes: ...

    def tail(self, ending: Ending) -> bytes: ...


def check_order(index: int, last_index: int, position: int, records: int) -> None:
    """Indices rise: each entry is there once."""
    if index <= last_index:
        raise FileDamaged(f"index {index} stands behind index {last_index}", position, records)
