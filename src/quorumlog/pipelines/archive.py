"""Archive: Parquet files of a log's entries, and the manifest that lists the valid ones.

    manifest.json   the parts, and which of them are not in parts/ yet
    parts/          the valid files, and nothing else: other tools open this folder
    _attempts/      files that a run writes; those the manifest does not name are removed. A file
                    run-... is there while a run writes: works whose run is over, so that it is gone,
                    write nothing, or remove their files
    lock            held by the run that writes; an object store has none

A run writes files under names of their own in _attempts/, names them in the manifest, which is replaced
whole, and then moves them. So other tools may see less than the manifest for a moment, and never more.

In an object store any number of runs may work at once. Each replaces the manifest only if it is the one
that it has read or written last, so the first one to do so ends all others. That is done as well before
files are deleted that the manifest does not name: their writer can then name them no more.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise

import msgspec
from msgspec import UNSET, UnsetType

from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, DirectoryDamaged, IndexOutOfRange
from quorumlog.log_state.control_entries import MOST_RUNS
from quorumlog.log_state.log_state import Resets, counted_ms
from quorumlog.pipelines.archive_folders import (
    LOCK_NAME,
    MANIFEST_NAME,
    TEMPORARY,
    ArchiveFolder,
    folder_at,
)
from quorumlog.pipelines.archive_parts import Part, part_of_footer, point_in_part, read_part
from quorumlog.pipelines.tables.target import ARCHIVE_DIRECTORY, archive_directory

PARTS, ATTEMPTS = "parts", "_attempts"
_RUN = "run-"
VERSION = 2
"""Version 1 had the parts beside the manifest: the next run that writes moves them."""


class Moving(msgspec.Struct, frozen=True):
    """A part that counts, and may not be in parts/ yet."""

    file: str
    source: str
    """Path below the archive's."""


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str = "quorumlog-archive"
    version: int = VERSION
    group: str = ""
    cluster_id: str = ""
    parts: tuple[Part, ...] = ()
    """In order, each continuing the one before."""
    moving: tuple[Moving, ...] = ()
    commit: str | UnsetType = UNSET
    """Of an object store: no two manifests are alike there, so none is taken for an earlier one."""


class Archive:
    def __init__(self, folder: ArchiveFolder, manifest: ArchiveManifest, tag: str | None = None) -> None:
        """`tag` None: it is read only."""
        self.path = folder.path
        self.manifest = manifest
        self._folder = folder
        self._tag = tag

    @classmethod
    def open(cls, path: str, *, group: str = "") -> Archive:
        """To read it; `path` may name its table. Raises ConfigError, DirectoryDamaged."""
        folder = folder_at(archive_directory(path))
        path, (manifest, _) = folder.path, load_manifest(folder)
        if manifest is None:
            is_in_table = os.path.basename(path) == ARCHIVE_DIRECTORY
            made_as = "delta:DIR or iceberg:NAMESPACE.TABLE" if is_in_table else path
            raise ConfigError(f"{path} holds no archive; quorumlog pipeline archive {made_as} makes one")
        if group and manifest.group and group != manifest.group:
            raise ConfigError(f"{path} is the archive of group {manifest.group}, not {group}")
        return cls(folder, manifest)

    @classmethod
    def open_to_add(cls, path: str, group: str, cluster_id: str) -> Archive:
        """A new one, or one of this log. Raises ConfigError, DirectoryDamaged."""
        folder = folder_at(path)
        folder.make()
        if load_manifest(folder)[0] is None:
            known = {LOCK_NAME, MANIFEST_NAME, MANIFEST_NAME + TEMPORARY, PARTS, ATTEMPTS}
            strange = sorted(set(folder.names()) - known)
            if strange:
                raise ConfigError(
                    f"{path} holds {strange[0]} and no archive; name an empty or a new directory"
                )
        folder.lock()
        try:
            manifest, tag = load_manifest(folder)
            is_new = manifest is None
            if manifest is None:
                manifest = ArchiveManifest(group=group, cluster_id=cluster_id)
            for name, ours, theirs in (
                ("group", manifest.group, group),
                ("cluster id", manifest.cluster_id, cluster_id),
            ):
                if ours and theirs and ours != theirs:
                    raise ConfigError(
                        f"{path} is the archive of another log: its {name} is {ours}, and that of this"
                        f" log {theirs}. It stays as it is; name another directory for this one"
                    )
            archive = cls(folder, manifest, tag)
            for name in (PARTS, ATTEMPTS):
                folder.make(name)
            if is_new and not folder.is_locked:
                archive._commit(manifest)
            archive._move()
            archive.check_files()
            archive.remove_strays()
        except BaseException:
            folder.close()
            raise
        return archive

    @contextmanager
    def run(self) -> Iterator[str]:
        """Name of the run's marker in _attempts/ until it ends; part of the name of each of its files.
        Those that the manifest does not name are deleted then. Raises as `load_manifest`."""
        name = f"{_RUN}{uuid.uuid4().hex}"
        path = os.path.join(ATTEMPTS, name)
        self._folder.finish(path, self._folder.create(path))
        try:
            yield name
        except BaseException:
            with suppress(Exception):  # what it cannot remove, the next run does
                self.end_run(name)
            raise
        self.end_run(name)

    def end_run(self, run: str) -> None:
        self._folder.delete([os.path.join(ATTEMPTS, run)])
        if not self._folder.is_locked:
            with suppress(ConfigError):  # a put of its own that had no answer is refused from here on
                self._commit(self.manifest)
        manifest, _ = load_manifest(self._folder)
        named = {each.source for each in manifest.moving} if manifest is not None else set()
        there = [os.path.join(ATTEMPTS, name) for name in self._folder.sizes(ATTEMPTS) if run in name]
        self._folder.delete([path for path in there if path not in named])

    def remove_strays(self) -> None:
        """Delete files that the manifest does not name: of a run cut off, or an attempt too many. Raises
        ConfigError if another run has replaced the manifest."""
        there = self._folder.sizes(ATTEMPTS)
        runs = [name for name in there if name.startswith(_RUN)]
        if there and not self._folder.is_locked:
            # In parts/ nothing is deleted: a name there may count again while this run lingers.
            self._commit(self.manifest)
        self._folder.delete([os.path.join(ATTEMPTS, name) for name in runs])
        strays = {os.path.join(ATTEMPTS, name) for name in there}
        if runs:  # a work that has not seen it go has its file there by now
            late = [name for name in self._folder.sizes(ATTEMPTS) if any(run in name for run in runs)]
            strays |= {os.path.join(ATTEMPTS, name) for name in late}
        if self._folder.is_locked:
            named = {part.file for part in self.manifest.parts}
            strays |= {
                os.path.join(PARTS, name) for name in self._folder.sizes(PARTS) if name not in named
            }
        self._folder.delete(sorted(strays))

    def check_files(self) -> None:
        """Every part is there in its length, by one listing. Raises DirectoryDamaged."""
        sizes = self._folder.sizes(PARTS)
        for part in self.manifest.parts:
            size = sizes.get(part.file, -1)
            if size < 0 or part.file_bytes not in (-1, size):
                found = "is gone" if size < 0 else f"has {size} bytes instead of {part.file_bytes}"
                raise DirectoryDamaged(
                    f"{self.path}: {PARTS}/{part.file} {found}, so entries {part.first_index} .."
                    f" {part.stop_index - 1} are not archived any more. Put the file back from a copy;"
                    " no hold is moved until then",
                    path=self.path,
                    position=-1,
                    index=part.first_index,
                )

    def paths_of(self, part: Part) -> list[str]:
        """Where to look for its file, in this order: a run may be moving it."""
        path = os.path.join(self.path, PARTS, part.file)
        sources = [
            os.path.join(self.path, e.source) for e in self.manifest.moving if e.file == part.file
        ]
        return [path, *sources, path] if sources else [path]

    def files(self) -> list[tuple[Part, str]]:
        """Each part with its path."""
        return [(part, os.path.join(self.path, PARTS, part.file)) for part in self.manifest.parts]

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

    def add(self, added: Sequence[tuple[Part, str]]) -> None:
        """Parts, and the names of their files in _attempts/. They count once this returns. Raises
        ConfigError, DirectoryDamaged, and adds none, unless each file is there as it was written; and
        ConfigError if another run has replaced the manifest."""
        for part, name in added:
            path = os.path.join(self.path, ATTEMPTS, name)
            try:
                _checked_footer(path, part)
            except DirectoryDamaged as error:
                if not self._folder.is_locked:
                    self._commit(self.manifest)  # another run has removed it, and replaced the manifest
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                raise ConfigError(
                    f"{path} was written and is not there: every executor has to see {self.path} at the"
                    " same path. Nothing was added"
                ) from None
        parts = [*self.manifest.parts, *(part for part, _ in added)]
        for before, after in pairwise(parts):
            assert (before.stop_index, before.last_chain) == (after.first_index, after.chain_before)
        moving = tuple(Moving(part.file, os.path.join(ATTEMPTS, name)) for part, name in added)
        self._commit(msgspec.structs.replace(self.manifest, parts=tuple(parts), moving=moving))
        self._move()

    def _move(self) -> None:
        """What the manifest names, into parts/; of an archive of version 1 everything."""
        if self.manifest.version < VERSION:
            # Sizes are not known, so the footers say whether the files are whole: a cut one has none.
            parts = tuple(
                _checked_footer(os.path.join(self.path, part.file), part) for part in self.manifest.parts
            )
            self._commit(msgspec.structs.replace(self.manifest, version=VERSION, parts=parts))
        if self.manifest.moving:
            self._folder.move(
                [(each.source, os.path.join(PARTS, each.file)) for each in self.manifest.moving]
            )
            self._commit(msgspec.structs.replace(self.manifest, moving=()))

    def _commit(self, manifest: ArchiveManifest) -> None:
        """Raises ConfigError if another run has replaced the manifest."""
        assert self._tag is not None, "opened to be read"
        if not self._folder.is_locked:
            manifest = msgspec.structs.replace(manifest, commit=uuid.uuid4().hex)
        content = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        self._tag = self._folder.replace_manifest(content, self._tag)
        self.manifest = manifest

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
                yield from read_part(self.paths_of(part), part, first_index, stop_index)

    def point_of(self, index: int) -> tuple[int, int]:
        """(position, chain_crc) of an entry. Raises DirectoryDamaged."""
        part = next(p for p in self.manifest.parts if p.first_index <= index < p.stop_index)
        return point_in_part(self.paths_of(part), index)

    def time_ms_at(self, index: int) -> int:
        """The time before a part is known, except for later resets; within one it is in its rows."""
        time_ms, resets = -1, self.clock_resets()
        for part in self.manifest.parts:
            if part.stop_index <= index + 1:
                time_ms = counted_ms(part.stop_index - 1, part.time_ms, resets)
            elif part.first_index <= index:
                times = AppendTimes(time_ms, resets)
                for batch in read_part(self.paths_of(part), part, part.first_index, index + 1):
                    time_ms = times.runs(batch)[-1][1]
        return time_ms

    def clock_resets(self) -> Resets:
        resets = [reset for part in self.manifest.parts for reset in part.clock_resets]
        return tuple(resets[-MOST_RUNS:])

    def close(self) -> None:
        self._folder.close()


def _checked_footer(path: str, part: Part) -> Part:
    """`part` with the size of its file. Raises DirectoryDamaged unless the footer says the same."""
    found = part_of_footer(path)
    if found != msgspec.structs.replace(part, file_bytes=found.file_bytes) or part.file_bytes not in (
        -1,
        found.file_bytes,
    ):
        raise DirectoryDamaged(
            f"{path} is not the file that was written", path=path, position=-1, index=part.first_index
        )
    return found


def load_manifest(folder: ArchiveFolder) -> tuple[ArchiveManifest | None, str]:
    """With its tag; None: there is none. Raises ConfigError, DirectoryDamaged, StoreFailure."""
    path, name = folder.path, os.path.join(folder.path, MANIFEST_NAME)
    found = folder.read_manifest()
    if found is None:
        return None, ""
    try:
        manifest = msgspec.json.decode(found[0], type=ArchiveManifest)
    except msgspec.DecodeError as error:
        raise DirectoryDamaged(f"{name} is damaged: {error}", path=path, position=-1, index=-1) from None
    if manifest.format != "quorumlog-archive" or not 1 <= manifest.version <= VERSION:
        raise ConfigError(
            f"{name} is {manifest.format} of version {manifest.version}; this release knows versions 1"
            f" to {VERSION}"
        )
    if manifest.version == 1:
        moving = tuple(Moving(part.file, part.file) for part in manifest.parts)
        manifest = msgspec.structs.replace(manifest, moving=moving)
    for before, after in pairwise(manifest.parts):
        if (before.stop_index, before.last_chain) != (after.first_index, after.chain_before):
            raise DirectoryDamaged(
                f"{name}: {after.file} does not continue {before.file}",
                path=path,
                position=-1,
                index=after.first_index,
            )
    return manifest, found[1]
