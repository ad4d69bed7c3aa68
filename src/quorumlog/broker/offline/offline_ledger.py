"""OfflineLedger: messages in the directory of a stopped member, ours or that of a Java broker in DLedger
mode (its `dledger-ID`, or the storePathRootDir above it). Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.message import BLANK_BYTES, LEAST_RECORD_BYTES, blank_record
from quorumlog.broker.offline.old_log import OldLog, TakenOver, taken_over
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.dispatch import MESSAGES, read_head
from quorumlog.broker.store.java_store import CONFIG_FOLDER_NAME
from quorumlog.broker.store.log_files import is_file_name
from quorumlog.broker.store.message_store import COMMIT_LOG_NAME, MessageStore
from quorumlog.broker.store.queues import QueueEnd, QueueEnds
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.directory_kind import (
    CONVERTING_NAME,
    JAVA_LEDGER_PREFIX,
    DirectoryKind,
    kind_of,
    refuse_other_kinds,
)
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk, disk_work
from quorumlog.store.segments import SegmentList
from quorumlog.store.snapshots import SnapshotDamaged, SnapshotFiles, SnapshotsUnavailable
from quorumlog.store.state_files import read_file, replace_file

_PIECE_BYTES = 4 << 20


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
        """After the last entry that is known to be committed: another member may have replaced those
        that follow."""
        return self._reader.committed_index + 1

    @property
    def end_index(self) -> int:
        """Of the last entry, committed or not."""
        return self._reader.ledger_end_index

    def batches(self, first_index: int = -1, stop_index: int = -1) -> Iterator[RecordBatch]:
        """Committed messages in their order, no batch empty. Raises DirectoryDamaged."""
        first_index = self.first_index if first_index < 0 else first_index
        stop_index = self.stop_index if stop_index < 0 else min(stop_index, self.stop_index)
        for batch in self._reader.batches(first_index, stop_index):
            headers = batch.headers()
            rows = np.flatnonzero(
                (headers["magic"] == EntryKind.NORMAL)
                & (batch.sizes >= HEADER_BYTES + LEAST_RECORD_BYTES)
            )
            if not len(rows):
                continue
            positions = headers["pos"][rows].astype(np.int64) + HEADER_BYTES
            records = RecordBatch(
                batch.buffer, batch.starts[rows] + HEADER_BYTES, batch.sizes[rows] - HEADER_BYTES
            )
            good = records.columns.good & (records.columns.physical_offsets == positions)
            if good.any():
                yield records if good.all() else records.select(np.flatnonzero(good))

    def queue_ends(self) -> dict[QueueKey, int]:
        """Number of the next message of each queue, at the newest good snapshot of the queues, the only
        record of deleted messages. Raises StoreFailure."""
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
        """Its messages, queue by queue."""
        queues: dict[QueueKey, tuple[int, int]] = {}
        messages = size_bytes = 0
        for records in self.batches():
            messages += len(records)
            size_bytes += records.total_bytes
            offsets = records.columns.queue_offsets
            for key, rows in records.queues:
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


# ---------------------------------------------------------------- Converter
# A classic store made of the messages of a replicated log. Their order, queue offsets, times and
# properties stay, UNIQ_KEY too; where they lie changes, and with it their message ids.


class Converted(NamedTuple):
    messages: int
    size_bytes: int
    """Of the records."""
    end_position: int
    """Of the commit log that was made."""
    left_out: int
    """Entries at the end that are not known to be committed."""


def convert_to_classic(source: str, target: str, config: MessageStoreConfig | None = None) -> Converted:
    """Raises ConfigError if `target` holds a store already or `source` no log of messages,
    DirectoryDamaged, DiskFull, StoreFailure; an incomplete target is no store, and may be deleted."""
    disk, config = OsDisk(), config or MessageStoreConfig()
    if disk.exists(target) and disk.list(target):
        raise ConfigError(f"{target} is not empty: name a directory for the new store")
    with OfflineLedger(source, disk) as ledger:
        batches = ledger.batches()
        first, old = next(batches, None), taken_over(disk, ledger.folder)
        if first is None and old is None:
            committed = max(ledger.stop_index - ledger.first_index, 0)
            raise ConfigError(
                f"{source} holds no messages: none of its {committed} committed entries is one; name the"
                " directory of a broker on a replicated log"
            )
        _refuse_earlier_log(disk, source)
        unfinished = f"{target}/{CONVERTING_NAME}"
        folder = f"{target}/{COMMIT_LOG_NAME}"
        with disk_work(target, "written"):
            disk.make_directory(unfinished)
            files = SegmentList(disk, unfinished, config.mapped_file_size_commit_log, 0)
            messages = size_bytes = position = 0
            found = [] if first is None else [first]
            for records in chain(_of_old_log(disk, ledger.folder, old), found, batches):
                position = _write(files, records.joined(), position, config)
                messages += len(records)
                size_bytes += records.total_bytes
            for file in files.files:
                file.sync()
            files.close()
            # Queues that have no message any more go on with their next number all the same; of the
            # others the log says it.
            gone = [] if old is None else old.queues
            ends = {QueueKey(topic, queue_id): end for topic, queue_id, end in gone}
            ends |= ledger.queue_ends()
            rows = [QueueEnd(*key, end, end) for key, end in sorted(ends.items())]
            QueueEnds(disk, target).save(rows)
            _copy_config(disk, source, target)
            # A store is there once all of it is: the name comes last.
            disk.rename(unfinished, folder)
            disk.sync_directory(target)
        left_out = max(ledger.end_index + 1 - ledger.stop_index, 0)
    # Queues, index and checkpoint follow from the log.
    MessageStore(target, config, disk=disk).close()
    return Converted(messages, size_bytes, position, left_out)


def _refuse_earlier_log(disk: Disk, source: str) -> None:
    """Of a Java broker that was a classic one before it was in DLedger mode. Raises ConfigError."""
    folder = f"{source}/{COMMIT_LOG_NAME}"
    if kind_of(disk, source) is DirectoryKind.JAVA_BROKER and any(map(is_file_name, disk.list(folder))):
        raise ConfigError(
            f"{folder} holds messages from before the broker was in DLedger mode, which are not read"
            " together with those of its replicated log: convert a copy without that folder, and take"
            " the older messages from it with Spark or broker dump"
        )


def _copy_config(disk: Disk, source: str, target: str) -> None:
    """Topics, groups and delays of a Java broker: a takeover of the store goes on with them, and so does
    a Java broker. Raises OSError."""
    folder = f"{source}/{CONFIG_FOLDER_NAME}"
    names = [name for name in disk.list(folder) if name.endswith((".json", ".json.bak", "timercheck"))]
    if not names:
        return
    disk.make_directory(f"{target}/{CONFIG_FOLDER_NAME}")
    for name in names:
        data = read_file(disk, f"{folder}/{name}") or b""
        replace_file(disk, f"{target}/{CONFIG_FOLDER_NAME}/{name}", data, synced=True)


def _of_old_log(disk: Disk, folder: str, record: TakenOver | None) -> Iterator[RecordBatch]:
    """What was taken over, below the first entry. Raises DirectoryDamaged, StoreFailure."""
    if record is not None:
        with closing(OldLog(disk, folder, record)) as old:
            yield from (found.records for found in old.records() if len(found.records))


def _write(files: SegmentList, records: RecordBatch, position: int, config: MessageStoreConfig) -> int:
    """Returns where the log ends then."""
    file_bytes = config.mapped_file_size_commit_log
    largest = int(records.sizes.max())
    if largest + BLANK_BYTES > file_bytes:
        raise ConfigError(
            f"a record of {largest} bytes does not fit into a file of {file_bytes} bytes: set"
            " mapped_file_size_commit_log"
        )
    ends = np.cumsum(records.sizes)
    first = done = 0
    while first < len(records):
        left = file_bytes - position % file_bytes - BLANK_BYTES
        stop = int(np.searchsorted(ends, done + left, side="right"))
        if stop == first:
            blank = file_bytes - position % file_bytes
            files.reserve(position + blank, file_bytes)
            files.write(blank_record(blank), position)
            position += blank
            continue
        end = int(ends[stop - 1])
        part = RecordBatch.contiguous(bytearray(records.buffer[done:end]), records.sizes[first:stop])
        part.move_to(part.starts + position)
        files.reserve(position + end - done, config.reserve_step_bytes)
        files.write(part.buffer, position)
        position += end - done
        first, done = stop, end
    return position
