"""table_at: what `delta:DIR` and `iceberg:TABLE` name, and what every such table does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from quorumlog.errors import ConfigError
from quorumlog.pipelines.archive_parts import Part, sync_path

ARCHIVE_DIRECTORY = "_quorumlog"
DELTA = "delta:"
ICEBERG = "iceberg:"


class ArchiveTable(Protocol):
    name: str
    directory: str
    """Of the archive."""

    def check(self) -> None:
        """Before an archive is begun in it. Raises ConfigError: there is a table that none made."""

    def add(self, parts: Sequence[Part], log: str) -> None:
        """What the table lacks of an archive's parts, in one commit, with the range in its metadata. A
        repetition finds that range and does nothing. Raises ConfigError."""


def table_at(target: str) -> ArchiveTable | None:
    """None: a directory, with no table. Raises ConfigError."""
    if target.startswith(DELTA):
        from quorumlog.pipelines.tables.delta import DeltaArchive

        return DeltaArchive(target)
    if target.startswith(ICEBERG):
        from quorumlog.pipelines.tables.iceberg import IcebergArchive

        return IcebergArchive(target)
    return None


def archive_directory(target: str) -> str:
    """Where the archive lies that `target` names. Raises ConfigError."""
    if target.startswith(DELTA):  # readers of an archive do not need its table
        return os.path.join(local_path(target, target.removeprefix(DELTA)), ARCHIVE_DIRECTORY)
    if target.startswith(ICEBERG):
        from quorumlog.pipelines.tables.iceberg import IcebergArchive

        return IcebergArchive(target, is_read=True).directory
    return checked_path(target)


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
        raise ConfigError(f"{target} is at {path!r}: pipelines read and write local paths only")
    return os.path.abspath(path)


def missing_in_table(name: str, parts: Sequence[Part], stop_index: int | None) -> Sequence[Part]:
    """The parts behind `stop_index`, which the table's metadata says; None: it has none. Raises
    ConfigError unless a part ends there."""
    if stop_index is None:
        return parts
    if stop_index not in {part.stop_index for part in parts}:
        raise ConfigError(
            f"{name} says that it has entries up to {stop_index - 1}, where no file of its archive ends."
            " Nothing was added to it; archive to another table"
        )
    return [part for part in parts if part.first_index >= stop_index]


def share(directory: str, part: Part, into: str) -> str:
    """A second name for a part's file, in a table's directory; a copy where there are no links."""
    os.makedirs(into, exist_ok=True)
    path, shared = os.path.join(directory, part.file), os.path.join(into, part.file)
    with suppress(FileNotFoundError):
        os.unlink(shared)  # of a run that ended before its commit
    try:
        os.link(path, shared)
    except OSError:
        shutil.copyfile(path, shared)
        sync_path(shared)
    sync_path(into)
    return shared


def not_committed(name: str, directory: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{name} did not take the commit: {error}. The archive in {directory} stands; repeated, the same"
        " call adds what the table lacks"
    )
