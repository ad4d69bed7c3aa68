"""An export under way: the file that is written, and where its entries come from, a running cluster or a
stopped member's directory."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from quorumlog.batch import EntryBatch
from quorumlog.cli.carry.export_format import (
    Ending,
    Extent,
    FileTorn,
    encoded,
    head,
    is_export,
    scan_export,
    tail,
)
from quorumlog.cli.options import LogServers, begin_index, refuse_another_group
from quorumlog.cli.output import note
from quorumlog.entry import Entry
from quorumlog.errors import ConfigError
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk

_NOTHING = Extent("", 0, 0, None, 0, None, None)


class ExportFile:
    """A context manager; one process at a time has it open. Its contents are in `extent`."""

    def __init__(self, path: Path, report: Callable[[int, int], None]) -> None:
        """Raises ConfigError for a file that is not an export or is in use, and FileDamaged."""
        self.path = path
        self.torn_bytes = 0
        """Bytes after the last whole record, to be cut."""
        self.extent = _NOTHING
        self._file = _opened(path)
        size_bytes = os.fstat(self._file.fileno()).st_size
        if size_bytes == 0:
            return
        with ExitStack() as unless_kept:
            unless_kept.enter_context(self._file)
            if not is_export(self._file):
                raise ConfigError(f"FILE {path} exists and is not an export; name another file")
            with suppress(FileTorn):  # not even the head is whole: it is written again
                self.extent = scan_export(self._file, report)
            if self.extent.ending is None:
                self.torn_bytes = size_bytes - self.extent.stop_position
            unless_kept.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    # ---------------------------------------------------------------- writing

    def begin(self, group: str, first_index: int) -> None:
        """From here on the file is changed: a torn record and the end mark are removed."""
        position = self.extent.stop_position
        self._file.seek(position)
        self._file.truncate()
        self._write(b"" if position else head(group, first_index))

    def add(self, entries: Iterable[Entry]) -> None:
        self._write(encoded(entries))

    def end(self, ending: Ending) -> int:
        """The file is whole, and on the disk; returns its size."""
        self._write(tail(ending), sync=True)
        return self._file.tell()

    def _write(self, data: bytes, *, sync: bool = False) -> None:
        try:
            self._file.write(data)
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(
                f"FILE {self.path}: {error.strerror}; the records written so far stay, and the same"
                " command continues after them"
            ) from None


def _opened(path: Path) -> BinaryIO:
    """Made if there is none; refused while another export writes it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(f"FILE {path}: {error.strerror}; name another file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"FILE {path} is not a regular file, which an export can continue; name one")
    file = os.fdopen(descriptor, "r+b")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"FILE {path}: another export writes it; wait for it") from None
    return file


class ExportSource(NamedTuple):
    """The committed entries, as of now: entries of [begin_index, stop_index)."""

    group: str
    """"" if unknown, as in Java's directories."""
    begin_index: int
    stop_index: int
    batches: Callable[[int, int], Iterator[EntryBatch]]
    """Of a range within."""


@contextmanager
def served(at: LogServers) -> Iterator[ExportSource]:
    with at.connected() as log:
        stop_index = log.end_index() + 1
        yield ExportSource(at.group, begin_index(log), stop_index, log.read_batches)


@contextmanager
def stored(path: str, group: str | None, stop_index: int | None) -> Iterator[ExportSource]:
    """Raises DirectoryDamaged if committed entries are missing that the export should hold."""
    with DirectoryReader(OsDisk(), path) as reader:
        refuse_another_group(path, reader.group, group)
        missing, readable = reader.missing, reader.readable_index + 1
        if missing is not None and (stop_index is None or missing.index < stop_index):
            raise reader.refusal(missing)
        if stop_index is None and readable <= reader.ledger_end_index:
            note(
                f"entries {readable} to {reader.ledger_end_index} are not known to be committed and are"
                " left out; to include them export from the running cluster"
            )
        yield ExportSource(reader.group, max(reader.ledger_begin_index, 0), readable, reader.batches)
