"""OfflineLedger: messages in the directory of a stopped member, ours or that of a Java broker in DLedger
mode (its `dledger-ID`, or the storePathRootDir above it). Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple, Self

import numpy as np

from quorumlog.broker.message import LEAST_RECORD_BYTES
from quorumlog.broker.record_batch import Int64Array, QueueKey, RecordBatch
from quorumlog.broker.store.dispatch import MESSAGES, read_head
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.directory_kind import JAVA_LEDGER_PREFIX, DirectoryKind, kind_of, refuse_other_kinds
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.snapshots import SnapshotDamaged, SnapshotFiles, SnapshotsUnavailable

_PIECE_BYTES = 4 << 20


class LedgerRecords(NamedTuple):
    records: RecordBatch
    positions: Int64Array
    """Of each record in the log."""
    next_index: int


def ledger_folder(path: str, disk: Disk | None = None) -> str | None:
    """Where the replicated log of a store lies; None: there is none, or there are several."""
    disk = OsDisk() if disk is None else disk
    if disk.exists(f"{path}/data") and disk.exists(f"{path}/index"):
        return path
    below = [f"{path}/{name}" for name in disk.list(path) if name.startswith(JAVA_LEDGER_PREFIX)]
    found = [each for each in below if disk.exists(f"{each}/data")]
    return found[0] if len(found) == 1 else None


def holds_ledger(path: str) -> bool:
    """The messages of a directory lie in a replicated log, and not in a classic one. Raises
    ConfigError."""
    disk = OsDisk()
    return kind_of(disk, path) is not DirectoryKind.BROKER and ledger_folder(path, disk) is not None


class OfflineLedger:
    def __init__(self, path: str, disk: Disk | None = None) -> None:
        """Raises ConfigError, StoreFailure."""
        disk = OsDisk() if disk is None else disk
        folder = ledger_folder(path, disk)
        if folder is None:
            raise ConfigError(f"{path} holds no replicated log: it has no folders data and index")
        refuse_other_kinds(disk, folder, DirectoryKind.LOG_BROKER, DirectoryKind.JAVA_LOG)
        self.folder = folder
        self._disk = disk
        self._reader = DirectoryReader(disk, folder)
        if self._reader.in_use:
            self._reader.close()
            raise ConfigError(f"{folder} is in use by a running member: stop it first")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    @property
    def is_java(self) -> bool:
        return self._reader.is_java

    @property
    def first_index(self) -> int:
        return max(self._reader.ledger_begin_index, 0)

    @property
    def stop_index(self) -> int:
        """Behind the last entry that is known to be committed: another member may have replaced those
        that follow."""
        return self._reader.committed_index + 1

    @property
    def end_index(self) -> int:
        """Of the last entry, committed or not."""
        return self._reader.ledger_end_index

    def batches(self, first_index: int = -1, stop_index: int = -1) -> Iterator[LedgerRecords]:
        """Committed messages in their order. Raises DirectoryDamaged."""
        first_index = self.first_index if first_index < 0 else first_index
        stop_index = self.stop_index if stop_index < 0 else min(stop_index, self.stop_index)
        for batch in self._reader.batches(first_index, stop_index):
            headers = batch.headers()
            rows = np.flatnonzero(
                (headers["magic"] == EntryKind.NORMAL)
                & (batch.sizes >= HEADER_BYTES + LEAST_RECORD_BYTES)
            )
            records = RecordBatch(
                batch.buffer, batch.starts[rows] + HEADER_BYTES, batch.sizes[rows] - HEADER_BYTES
            )
            if not len(rows):
                continue
            good = records.columns.good & (
                records.columns.physical_offsets == headers["pos"][rows].astype(np.int64) + HEADER_BYTES
            )
            if not good.all():
                rows, records = rows[good], records.select(np.flatnonzero(good))
            positions = headers["pos"][rows].astype(np.int64) + HEADER_BYTES
            yield LedgerRecords(records, positions, batch.last_index + 1)

    def queue_ends(self) -> dict[QueueKey, int]:
        """Number of the next message of each queue, where the newest good snapshot of the queues was
        made: what the log has no more is told by that only. Raises StoreFailure."""
        files = SnapshotFiles(self._disk, self.folder)
        try:
            for index in reversed(files.indices_of(MESSAGES)):
                try:
                    with closing(files.open(MESSAGES, index)) as reader:
                        reader.read(reader.head.kept_bytes)
                        head = read_head(reader)
                        while reader.skip(_PIECE_BYTES):
                            pass
                except SnapshotDamaged:
                    continue
                return {QueueKey(row.topic, row.queue_id): row.max_offset for row in head.queues}
        except SnapshotsUnavailable as error:
            raise StoreFailure(str(error)) from error
        return {}

    def summary(self) -> dict[str, Any]:
        """What it holds, queue by queue."""
        queues: dict[QueueKey, tuple[int, int]] = {}
        messages = size_bytes = 0
        for found in self.batches():
            messages += len(found.records)
            size_bytes += found.records.total_bytes
            offsets = found.records.columns.queue_offsets
            for key, rows in found.records.queues:
                first, _ = queues.get(key, (int(offsets[rows[0]]), 0))
                queues[key] = first, int(offsets[rows[-1]]) + 1
        return {
            "directory": self.folder,
            "written_by": "java" if self.is_java else "quorumlog",
            "first_index": self.first_index,
            "committed_index": self.stop_index - 1,
            "end_index": self.end_index,
            "messages": messages,
            "bytes": size_bytes,
            "queues": [
                {"topic": key.topic, "queue_id": key.queue_id, "min_offset": first, "max_offset": stop}
                for key, (first, stop) in sorted(queues.items())
            ],
        }
