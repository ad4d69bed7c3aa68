"""table_at: the tables `delta:DIR` and `iceberg:TABLE`, and their common interface."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import numpy as np

from quorumlog.errors import ConfigError
from quorumlog.header_array import Int64Array
from quorumlog.pipelines.archive_folders import ObjectFolder, is_object, sync_path
from quorumlog.pipelines.archive_parts import Part

ARCHIVE_DIRECTORY = "_quorumlog"
DELTA = "delta:"
ICEBERG = "iceberg:"


Files = Sequence[tuple[Part, str]]
"""An archive's parts, each with its path."""


class ArchiveTable(ABC):
    name: str
    directory: str
    """Of the archive."""

    @abstractmethod
    def check(self) -> None:
        """Before an archive is begun in it. Raises ConfigError: there is a table that none made."""

    @abstractmethod
    def recorded_stop(self, log: str) -> tuple[int | None, bool]:
        """Up to where the present version has the log (None: it has nothing), and whether its commits
        still say so. What `commit` adds is based on this very version. Raises ConfigError."""

    @abstractmethod
    def commit(self, files: Files, missing: Files, log: str) -> None:
        """Add `missing`, which ends `files`, in one commit, with the range in its metadata."""

    @abstractmethod
    def indices(self) -> Iterator[Int64Array]:
        """Column `index` of all rows, in no order, in pieces."""

    def add(self, files: Files, log: str) -> None:
        """Add the archive's parts that the table lacks. A repetition finds their range and does nothing;
        so does one after a table was restored or rolled back, which takes the range back with the rows.
        Raises ConfigError."""
        stop_index, is_recorded = self.recorded_stop(log)
        if stop_index is not None and stop_index not in {part.stop_index for part, _ in files}:
            raise ConfigError(
                f"{self.name} says that it has entries up to {stop_index - 1}, where no file of its"
                " archive ends. Nothing was added to it; archive to another table"
            )
        if stop_index is not None and not is_recorded:
            self._check_newest_rows(files, stop_index)
        missing = [each for each in files if each[0].first_index >= (stop_index or 0)]
        if missing:
            self.commit(files, missing, log)

    def _check_newest_rows(self, files: Files, stop_index: int) -> None:
        """If no commit with the table's state is left, check by its rows. Raises ConfigError if the
        newest are gone: restored to an older version, or deleted."""
        newest = [part for part, _ in files if part.stop_index <= stop_index and part.rows][-1:]
        for part in newest:
            if not any(len(each) and int(each.max()) >= part.first_index for each in self.indices()):
                raise ConfigError(
                    f"{self.name} had entries up to {stop_index - 1}, and has none from"
                    f" {part.first_index} on: it was restored, or they were deleted, and the commits"
                    " that would show it have expired. Nothing was added to it; archive to another"
                    " table"
                )

    @contextmanager
    def asking(self, *kinds: type[Exception]) -> Iterator[None]:
        """Raises ConfigError for errors of these kinds."""
        try:
            yield
        except kinds as error:
            raise ConfigError(
                f"{self.name} did not take the commit: {error}. The archive in {self.directory} is"
                " complete; repeat the call, which adds the missing rows to the table"
            ) from error


def table_at(target: str, *, is_read: bool = False) -> ArchiveTable | None:
    """None: a directory, with no table. `is_read`: none is made. Raises ConfigError."""
    if target.startswith(DELTA):
        from quorumlog.pipelines.tables.delta import DeltaArchive

        return DeltaArchive(target)
    if target.startswith(ICEBERG):
        from quorumlog.pipelines.tables.iceberg import IcebergArchive

        return IcebergArchive(target, is_read=is_read)
    return None


class Hole(msgspec.Struct, frozen=True):
    """Rows of an archive that its table does not have, or has more than once."""

    index: int
    what: str


def holes_of(table: ArchiveTable, parts: Sequence[Part], log: str) -> list[Hole]:
    """Ranges of the archive missing in the table's present version, by its rows. Raises
    ConfigError."""
    if not parts:
        return []
    edges = np.array([parts[0].first_index, *(part.stop_index for part in parts)], np.int64)
    counts = np.zeros(len(parts), np.int64)
    for indices in table.indices():
        counts += np.histogram(indices, edges)[0]
    stop_index, _ = table.recorded_stop(log)
    if stop_index is None or stop_index < parts[-1].stop_index:
        at = parts[0].first_index if stop_index is None else stop_index
        return [
            Hole(at, f"the table ends before entry {at}; repeat pipeline archive, which adds the rest")
        ]
    return [
        Hole(
            part.first_index,
            f"of entries {part.first_index} .. {part.stop_index - 1} the table has {count} rows, and the"
            f" archive {part.rows}",
        )
        for part, count in zip(parts, counts.tolist(), strict=True)
        if count != part.rows
    ]


def archive_directory(target: str) -> str:
    """Where the archive lies that `target` names. Raises ConfigError."""
    if target.startswith(DELTA):  # readers of an archive do not need its table
        return os.path.join(local_path(target, target.removeprefix(DELTA)), ARCHIVE_DIRECTORY)
    if target.startswith(ICEBERG):
        from quorumlog.pipelines.tables.iceberg import IcebergArchive

        return IcebergArchive(target, is_read=True).directory
    return ObjectFolder(target).path if is_object(target) else checked_path(target)


def checked_path(path: str) -> str:
    """As it is, unless it is a URI: of a local file its path. Raises ConfigError."""
    return local_path(path, path) if ":/" in path else path


def local_path(target: str, path: str) -> str:
    """Raises ConfigError."""
    path = path.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    scheme, colon, _ = path.partition(":/")
    if not path or (colon and "/" not in scheme):
        raise ConfigError(
            f"{target} is at {path!r}: tables and files are on local paths only; an archive that is no"
            " table may lie in an object store, s3://BUCKET/PREFIX"
        )
    return os.path.abspath(path)


def share(path: str, into: str) -> str:
    """A second name for a part's file, in a table's directory; a copy where there are no links."""
    os.makedirs(into, exist_ok=True)
    shared = os.path.join(into, os.path.basename(path))
    with suppress(FileNotFoundError):
        os.unlink(shared)  # of a run that ended before its commit
    try:
        os.link(path, shared)
    except OSError:
        shutil.copyfile(path, shared)
        sync_path(shared)
    sync_path(into)
    return shared
