"""ReceivedSnapshot: a snapshot of another member, piece by piece, until it is one of this member's.

    NAME-INDEX-DIGEST.part    grows at its end; whoever goes on with it later, another process too, asks
                              for what follows
    whole                     read again from the disk, every chunk and the digest compared
    NAME-INDEX                renamed, and the name synced

What a power loss has left of a part may have holes: the comparison finds that, and it is asked for anew.
"""

from __future__ import annotations

from contextlib import suppress

from quorumlog.entry import SnapshotId
from quorumlog.store.disk import Disk, DiskFile
from quorumlog.store.files.snapshot_file import (
    SYNC_BYTES,
    SnapshotDamaged,
    SnapshotFileReader,
    SnapshotFiles,
)

VERIFY_BYTES = 4 << 20
"""Compared so much at once: machines wait for it."""


class ReceivedSnapshot:
    """Any thread, one call at a time. All raise OSError, and `drop` is what may follow then; what raises
    SnapshotDamaged or SnapshotsUnavailable says so."""

    def __init__(self, files: SnapshotFiles, wanted: SnapshotId) -> None:
        """Raises SnapshotsUnavailable."""
        self.id = wanted
        self._disk: Disk = files.disk
        self._files = files
        self._path = files.path_of(wanted.name, wanted.index)
        self._part_path = files.part_path_of(wanted)
        self._file: DiskFile | None = None
        self._reader: SnapshotFileReader | None = None
        self._unsynced_bytes = 0
        self.size_bytes = 0
        """So much of it has come."""
        self.is_placed = self._disk.exists(self._path) and self._holds_it()
        """It lies there under its name, if the comparison finds that it does."""
        if self.is_placed:
            self.size_bytes = wanted.total_bytes
            return
        files.make_folder()
        files.delete_other_parts(wanted)
        is_new = not self._disk.exists(self._part_path)
        self._file = self._disk.open(self._part_path, create=is_new)
        self.size_bytes = min(self._file.size(), wanted.total_bytes)

    def _holds_it(self) -> bool:
        return self._files.read_piece(self.id, 0, 0) is not None

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.id.total_bytes

    def write(self, offset: int, data: bytes) -> None:
        """Bytes behind those that are there; others change nothing."""
        assert self._file is not None, self._part_path
        if offset != self.size_bytes or offset + len(data) > self.id.total_bytes:
            return
        self._file.pwritev([data], offset)
        self.size_bytes += len(data)
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= SYNC_BYTES or self.is_whole:
            self._file.sync()
            self._file.uncache(self.size_bytes - self._unsynced_bytes, self._unsynced_bytes)
            self._unsynced_bytes = 0

    def verify(self) -> bool:
        """Compare the next piece; True once it is good, whole, and on disk under its name. Raises
        SnapshotDamaged: it was deleted; SnapshotsUnavailable."""
        if self._reader is None:
            if self._file is not None:
                self._file.sync()  # what an earlier process has written
            self._reader = SnapshotFileReader(
                self._disk, self._path if self.is_placed else self._part_path
            )
        if self._reader.skip(VERIFY_BYTES):
            return False
        if self._reader.id != self.id:
            raise SnapshotDamaged(f"{self._part_path} holds {self._reader.id} instead of {self.id}")
        if not self.is_placed:
            self._disk.rename(self._part_path, self._path)
            self.is_placed = True
        self._disk.sync_directory(self._files.folder)
        self.close()
        return True

    def drop(self) -> None:
        """What has come is of no use."""
        self.close()
        for path in (self._part_path, self._path if self.is_placed else ""):
            with suppress(OSError):
                if path and self._disk.exists(path):
                    self._disk.unlink(path)

    def close(self) -> None:
        for opened in (self._file, self._reader):
            if opened is not None:
                opened.close()
        self._file = self._reader = None
