"""Archive: Parquet files of a log's entries, and the manifest that says which of them count.

A file that the manifest does not name is not there: who continues the archive removes it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, DirectoryDamaged, IndexOutOfRange
from quorumlog.pipelines.archive_parts import TEMPORARY, Part, point_in_part, read_part, sync_path
from quorumlog.pipelines.tables.target import archive_directory

MANIFEST_NAME = "manifest.json"
LOCK_NAME = "lock"
VERSION = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str = "quorumlog-archive"
    version: int = VERSION
    group: str = ""
    cluster_id: str = ""
    parts: tuple[Part, ...] = ()
    """In order, each continuing the one before."""


class Archive:
    """An open archive; one that is written to is locked."""

    def __init__(self, path: str, manifest: Manifest, lock: int | None) -> None:
        self.path = path
        self.manifest = manifest
        self._lock = lock

    @classmethod
    def open(cls, path: str, *, group: str = "") -> Archive:
        """To read it; `path` may name its table. Raises ConfigError, DirectoryDamaged."""
        path = archive_directory(path)
        manifest = load_manifest(path)
        if manifest is None:
            raise ConfigError(f"{path} holds no archive; quorumlog pipeline archive {path} makes one")
        if group and manifest.group and group != manifest.group:
            raise ConfigError(f"{path} is the archive of group {manifest.group}, not {group}")
        return cls(path, manifest, None)

    @classmethod
    def open_to_add(cls, path: str, group: str, cluster_id: str) -> Archive:
        """A new one, or one of this log. Raises ConfigError, DirectoryDamaged."""
        if os.path.exists(path) and not os.path.isdir(path):
            raise ConfigError(f"{path} is a file; name a directory for the archive")
        os.makedirs(path, exist_ok=True)
        lock = os.open(os.path.join(path, LOCK_NAME), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{path} is being written by another archive run; wait for it"
                ) from None
            manifest = load_manifest(path)
            if manifest is None:
                strange = sorted(name for name in os.listdir(path) if not _is_ours(name))
                if strange:
                    raise ConfigError(
                        f"{path} holds {strange[0]} and no archive; name an empty or a new directory"
                    )
                manifest = Manifest(group=group, cluster_id=cluster_id)
            for name, ours, theirs in (
                ("group", manifest.group, group),
                ("cluster id", manifest.cluster_id, cluster_id),
            ):
                if ours and theirs and ours != theirs:
                    raise ConfigError(
                        f"{path} is the archive of another log: its {name} is {ours}, and that of this"
                        f" log {theirs}. It stays as it is; name another directory for this one"
                    )
            archive = cls(path, manifest, lock)
            archive._remove_strays()
        except BaseException:
            os.close(lock)
            raise
        return archive

    def _remove_strays(self) -> None:
        named = {part.file for part in self.manifest.parts}
        for name in os.listdir(self.path):
            is_part = name.startswith("part-") and name.endswith((".parquet", TEMPORARY))
            if is_part and name not in named:
                os.unlink(os.path.join(self.path, name))

    @property
    def group(self) -> str:
        return self.manifest.group

    @property
    def cluster_id(self) -> str:
        return self.manifest.cluster_id

    @property
    def begin_index(self) -> int:
        return self.manifest.parts[0].first_index if self.manifest.parts else 0

    @property
    def stop_index(self) -> int:
        return self.manifest.parts[-1].stop_index if self.manifest.parts else 0

    def add(self, part: Part) -> None:
        """It counts once this returns."""
        assert self._lock is not None, "opened to be read"
        last = self.manifest.parts[-1] if self.manifest.parts else None
        assert last is None or (last.stop_index, last.last_chain) == (
            part.first_index,
            part.chain_before,
        ), (last, part)
        self.manifest = msgspec.structs.replace(self.manifest, parts=(*self.manifest.parts, part))
        path = os.path.join(self.path, MANIFEST_NAME)
        with open(path + TEMPORARY, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self.manifest)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + TEMPORARY, path)
        sync_path(self.path)

    def batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        if first_index < stop_index and not (
            self.begin_index <= first_index and stop_index <= self.stop_index
        ):
            raise IndexOutOfRange(
                f"{self.path} holds entries {self.begin_index} .. {self.stop_index - 1}, not all of"
                f" {first_index} .. {stop_index - 1}",
                ledger_begin_index=self.begin_index,
                committed_index=self.stop_index - 1,
            )
        for part in self.manifest.parts:
            if part.first_index < stop_index and part.stop_index > first_index:
                yield from read_part(self.path, part, first_index, stop_index)

    def point_of(self, index: int) -> tuple[int, int]:
        """(position, chain_crc) of an entry. Raises DirectoryDamaged."""
        part = next(p for p in self.manifest.parts if p.first_index <= index < p.stop_index)
        return point_in_part(self.path, part, index)

    def time_ms_at(self, index: int) -> int:
        """What holds in front of a part is known; within one its rows say it."""
        time_ms = -1
        for part in self.manifest.parts:
            if part.stop_index <= index + 1:
                time_ms = part.time_ms
        if any(part.first_index < index + 1 < part.stop_index for part in self.manifest.parts):
            from quorumlog.append_times import AppendTimes

            part = next(p for p in self.manifest.parts if p.first_index <= index < p.stop_index)
            times = AppendTimes(time_ms)
            for batch in read_part(self.path, part, part.first_index, index + 1):
                time_ms = times.runs(batch)[-1][1]
        return time_ms

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _is_ours(name: str) -> bool:
    return name in (LOCK_NAME, MANIFEST_NAME + TEMPORARY) or name.startswith("part-")


def load_manifest(path: str) -> Manifest | None:
    """None: there is none. Raises ConfigError, DirectoryDamaged."""
    name = os.path.join(path, MANIFEST_NAME)
    try:
        with open(name, "rb") as file:
            manifest = msgspec.json.decode(file.read(), type=Manifest)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigError(f"{path} is a file; name a directory for the archive") from None
    except msgspec.DecodeError as error:
        raise DirectoryDamaged(f"{name} is damaged: {error}", path=path, position=-1, index=-1) from None
    if manifest.format != "quorumlog-archive" or manifest.version != VERSION:
        raise ConfigError(
            f"{name} is {manifest.format} of version {manifest.version}; known is version {VERSION}"
        )
    for before, after in zip(manifest.parts, manifest.parts[1:], strict=False):
        if (before.stop_index, before.last_chain) != (after.first_index, after.chain_before):
            raise DirectoryDamaged(
                f"{name}: {after.file} does not continue {before.file}",
                path=path,
                position=-1,
                index=after.first_index,
            )
    return manifest
