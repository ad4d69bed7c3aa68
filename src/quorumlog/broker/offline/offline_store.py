"""OfflineStore: a stopped store, ours or a Java broker's, looked at without changing anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Self

import numpy as np

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.index import INDEX_FOLDER_NAME
from quorumlog.broker.store.java_store import (
    deleted_topics,
    find_deleted,
    refuse_missing_files,
    refuse_other_queues,
    wrong_units,
)
from quorumlog.broker.store.log_files import (
    FLUSHED_MAGIC,
    FLUSHED_NAME,
    FlushedFile,
    LogEnd,
    file_sizes,
    flushed_of,
    open_file_list,
    read_records,
    walk,
)
from quorumlog.broker.store.message_store import ABORT_NAME, COMMIT_LOG_NAME, LOCK_NAME, REPLICA_NAME
from quorumlog.broker.store.queues import QUEUES_NAME, ConsumeQueues, QueueEnd, QueueEnds
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.directory_kind import DirectoryKind, refuse_other_kinds
from quorumlog.store.disk import Disk, OsDisk, not_allowed
from quorumlog.store.slot_file import read_payload

CHECKPOINT_FIELDS = (
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
)


def _size_in(disk: Disk, folder: str) -> int:
    """What most files of a folder have; 0 of an empty one."""
    sizes = [size for size in file_sizes(disk, folder).values() if size]
    return max(set(sizes), key=sizes.count) if sizes else 0


class OfflineStore:
    def __init__(self, root: str, disk: Disk | None = None) -> None:
        """Raises ConfigError where there is no store, or one that runs; StoreFailure."""
        self.root = root
        self._disk: Disk = OsDisk() if disk is None else disk
        disk = self._disk
        try:
            refuse_other_kinds(disk, root, DirectoryKind.BROKER)
            if not disk.exists(f"{root}/{COMMIT_LOG_NAME}"):
                raise ConfigError(f"{root} holds no store: it has no folder {COMMIT_LOG_NAME}")
            if disk.is_locked(f"{root}/{LOCK_NAME}"):
                raise ConfigError(f"{root} is in use by a running broker: stop it first")
            refuse_other_queues(disk, root)
            self._held = self._flushed()
            is_known = self._held is not None
            if self._held is not None:
                _, self.file_bytes, self.queue_bytes = self._held
            else:
                self.file_bytes = _size_in(disk, f"{root}/{COMMIT_LOG_NAME}") or 1 << 30
                sizes = [
                    _size_in(disk, f"{root}/{QUEUES_NAME}/{topic}/{queue}")
                    for topic in disk.list(f"{root}/{QUEUES_NAME}")
                    for queue in disk.list(f"{root}/{QUEUES_NAME}/{topic}")
                ]
                self.queue_bytes = max(sizes, default=0) // 20 * 20 or 6_000_000
            self.files = open_file_list(
                disk,
                f"{root}/{COMMIT_LOG_NAME}",
                self.file_bytes,
                option="mapped_file_size_commit_log",
                writable=False,
                sizes_are_known=is_known,
            )
            config = MessageStoreConfig(mapped_file_size_consume_queue=self.queue_bytes)
            self.queues = ConsumeQueues(
                disk,
                root,
                config,
                None,
                log_begin=self.files.first_position,
                writable=False,
                sizes_are_known=is_known,
            )
        except PermissionError as error:
            raise ConfigError(not_allowed(root, error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.files.close()
        self.queues.close()

    @property
    def is_clean(self) -> bool:
        """It was stopped, and not killed: queues and index have all that the log has."""
        return not self._disk.exists(f"{self.root}/{ABORT_NAME}")

    # ---------------------------------------------------------------- the log

    def walk(self, end: LogEnd, position: int | None = None) -> Iterator[Any]:
        first = self.files.first_position if position is None else position
        return walk(self.files, first, end, check_bodies=True)

    def batches(self, position: int | None = None) -> Iterator[RecordBatch]:
        """All good records from one on. Raises DirectoryDamaged where a record is none and more was
        known to be on disk."""
        end = LogEnd(0)
        for found in self.walk(end, position):
            if len(found.records):
                yield found.records
        flushed = self.flushed_offset() or 0
        if end.position < flushed:
            raise DirectoryDamaged(
                f"the record at {end.position} of {self.root} {end.problem or 'is missing'}",
                path=self.files.path_of(end.position),
                position=end.position,
            )

    def refuse_missing_files(self, end: LogEnd) -> None:
        """`end`: of a walk over the whole log. Raises ConfigError for a store that is not ours, where
        queues or checkpoint know more than that."""
        if self._held is None:
            refuse_missing_files(
                self._disk, self.root, self.files, self.queues, end, is_clean=self.is_clean
            )

    def flushed_offset(self) -> int | None:
        """None of a Java broker's store."""
        return None if self._held is None else self._held[0]

    def _flushed(self) -> tuple[int, int, int] | None:
        try:
            payload = read_payload(self._disk, f"{self.root}/{FLUSHED_NAME}", FLUSHED_MAGIC)
        except FileNotFoundError:
            return None
        return None if payload is None else flushed_of(payload)

    # ---------------------------------------------------------------- looking

    def summary(self) -> dict[str, Any]:
        end = LogEnd(self.files.first_position)
        messages = sum(len(found.records) for found in self.walk(end))
        return {
            "directory": self.root,
            "clean": self.is_clean,
            "files": len(self.files.bases),
            "file_bytes": self.file_bytes,
            "min_offset": self.files.first_position,
            "max_offset": end.position,
            "problem": end.problem,
            "messages": messages,
            "flushed_offset": self.flushed_offset(),
            "checkpoint": self._checkpoint(),
            "queues": [
                {
                    "topic": key.topic,
                    "queue_id": key.queue_id,
                    "min_offset": queue.min_offset,
                    "max_offset": queue.max_offset,
                }
                for key, queue in self.queues.items()
            ],
            "index_files": self._index_files(),
        }

    def _checkpoint(self) -> dict[str, int]:
        path = f"{self.root}/checkpoint"
        if not self._disk.exists(path):
            return {}
        data = self._head_of(path)
        values = np.frombuffer(data[: len(data) // 8 * 8], ">i8").tolist()
        return dict(zip(CHECKPOINT_FIELDS, values, strict=False))

    def _head_of(self, path: str) -> bytes:
        with closing(self._disk.open(path, writable=False)) as file:
            return file.pread(40, 0)

    def _unconfirmed(self) -> int:
        """From where on a message may be in no queue."""
        if not self._disk.exists(f"{self.root}/{REPLICA_NAME}"):
            return (1 << 63) - 1
        return self._checkpoint().get("confirmPhyOffset", (1 << 63) - 1)

    def _index_files(self) -> list[dict[str, Any]]:
        rows = []
        for name in self._disk.list(f"{self.root}/{INDEX_FOLDER_NAME}"):
            header = self._head_of(f"{self.root}/{INDEX_FOLDER_NAME}/{name}")
            if len(header) == 40:
                keys = max(int.from_bytes(header[36:], "big") - 1, 0)
                rows.append({"name": name, "keys": keys})
        return rows

    def verify(self) -> dict[str, Any]:
        """Checks every record, and that the units of the queues name exactly these. Messages not known
        to be confirmed when a replicated store ended are in no queue yet."""
        unconfirmed = self._unconfirmed()
        if self._held is None:
            was_deleted = deleted_topics(self._disk, self.root)
            self.queues.alive_from |= find_deleted(self.files, was_deleted)
        end = LogEnd(self.files.first_position)
        messages = size_bytes = 0
        problems: list[str] = []
        seen: dict[Any, int] = {}
        for found in self.walk(end):
            records = found.records
            messages += len(records)
            size_bytes += records.total_bytes
            shown = records.shown
            for key, rows in shown.queues:
                seen[key] = int(shown.columns.queue_offsets[rows[-1]]) + 1
            problems += [
                f"{problem}; delete the folder consumequeue, and a start derives it anew"
                for _, problem in wrong_units(found, self.queues, unconfirmed)
            ]
        for key, queue in self.queues.items():
            if queue.max_offset > max(seen.get(key, 0), queue.min_offset):
                problems.append(
                    f"{key.topic} queue {key.queue_id}: units from {seen.get(key, 0)} on name no message"
                )
        if lost := self.queues.lost or self.queues.missing():
            problems.append(f"{lost}; a start derives queues and index anew")
        flushed = self.flushed_offset()
        try:
            self.refuse_missing_files(end)
        except ConfigError as missing:
            problems.insert(0, str(missing))
        if end.problem or (flushed is not None and end.position < flushed):
            known = "" if flushed is None else f"; the log was on disk up to {flushed}"
            problems.insert(0, f"the record at {end.position} {end.problem or 'is missing'}{known}")
        return {
            "messages": messages,
            "bytes": size_bytes,
            "queue_units": sum(queue.max_offset - queue.min_offset for queue in self.queues.all),
            "keys": sum(row["keys"] for row in self._index_files()),
            "end": end.position,
            "problems": problems,
        }


def allow_cut(root: str, position: int) -> int:
    """The next start may end the log there; returns how much that was known to be on disk is given up.
    Raises ConfigError."""
    disk = OsDisk()
    with OfflineStore(root, disk) as store:
        end = LogEnd(0)
        for _ in store.walk(end):
            pass
        if end.position != position:
            raise ConfigError(
                f"--cut {position}: the first damaged record of {root} is at {end.position}"
            )
        found, _ = read_records(store.files, position, store.files.end_position)
        assert found is None or end.problem, (position, end)
        sizes = store.file_bytes, store.queue_bytes
    flushed = FlushedFile.open(disk, root, *sizes)
    given_up = flushed.load() - position
    if given_up > 0:
        flushed.record_synced(position)
    flushed.close()
    return max(given_up, 0)


def hide_given_again(root: str) -> dict[QueueKey, int]:
    """For queues with reused numbers, the next start shows later messages; returns the first position.
    Raises ConfigError, StoreFailure."""
    disk = OsDisk()
    with OfflineStore(root, disk) as store:
        ends = QueueEnds(disk, root)
        known = {each.key: each for each in ends.load()}
        begun = {key for key, each in known.items() if each.begin > 0}
        found = find_deleted(store.files, lambda topic: False, begun)
    found = {key: at for key, at in found.items() if key not in known or at > known[key].alive_from}
    known |= {key: QueueEnd(*key, 0, alive_from=at) for key, at in found.items()}
    ends.save(list(known.values()))
    return found
