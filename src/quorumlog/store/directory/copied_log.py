"""CopiedLog: a log that takes entries as another one has stamped them, byte for byte: that of a backup,
or of a member that is made from one. And what such a directory has beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, StoreConfig
from quorumlog.entry import HardState
from quorumlog.errors import ProtocolViolation
from quorumlog.store.directory_kind import LOCK_NAME, OWN_FOLDERS, OWN_NAMES
from quorumlog.store.disk import Disk
from quorumlog.store.file_ledger_store import FileLedgerStore
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME, Checkpoint, encode_checkpoint
from quorumlog.store.files.durable_file import DurableFile
from quorumlog.store.files.hard_state_file import HardStateFile
from quorumlog.store.files.member_file import MEMBER_NAME
from quorumlog.store.files.replaced_file import replace_file
from quorumlog.store.files.start_file import save_start
from quorumlog.store.ledger_store import LogPoint, LogStart
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME

_CLEARED = OWN_NAMES - OWN_FOLDERS - {LOCK_NAME} | {CHECKPOINT_NAME, f"{CHECKPOINT_NAME}.tmp"}
SYNC_BYTES = 64 * MIB
"""Written at most before it is synced."""


def copy_config(segment_bytes: int, index_segment_bytes: int) -> StoreConfig:
    """Of a log that nobody serves: it may fill its disk, and takes no memory from who does. Raises
    ConfigError for sizes that no member has."""
    return StoreConfig(
        segment_bytes=segment_bytes,
        index_segment_bytes=index_segment_bytes,
        disk_full_ratio=1.0,
        page_cache_bytes=0,
    )


def make_files(disk: Disk, path: str, start: LogStart | None) -> None:
    """Of a log without entries, all but `member`. On disk when this returns; raises OSError,
    StoreFailure."""
    for folder in (DATA_NAME, INDEX_NAME):
        disk.make_directory(f"{path}/{folder}")
        disk.sync_directory(f"{path}/{folder}")
    if start is not None:
        save_start(disk, path, start)
    HardStateFile.create(disk, path, HardState(0, None)).close()
    DurableFile.create(disk, path).close()
    disk.sync_directory(path)


def clear_files(disk: Disk, path: str) -> None:
    """Everything that makes a directory a log's goes, `member` first. Raises OSError."""
    if disk.exists(f"{path}/{MEMBER_NAME}"):
        disk.unlink(f"{path}/{MEMBER_NAME}")
        disk.sync_directory(path)
    for folder in sorted(OWN_FOLDERS):
        for name in disk.list(f"{path}/{folder}"):
            disk.unlink(f"{path}/{folder}/{name}")
    for name in disk.list(path):
        if name in _CLEARED:
            disk.unlink(f"{path}/{name}")
    disk.sync_directory(path)


def save_promises(disk: Disk, path: str, state: HardState, committed: LogPoint) -> None:
    """Term and vote, and how far the log is committed, which is all of it. On disk when this returns;
    raises OSError, StoreFailure."""
    file = HardStateFile.open(disk, path)
    try:
        file.save(state)
    finally:
        file.close()
    checkpoint = Checkpoint(committed.index, committed.index, committed.term, committed.chain)
    replace_file(disk, f"{path}/{CHECKPOINT_NAME}", encode_checkpoint(checkpoint), synced=True)


class CopiedLog:
    def __init__(self, store: FileLedgerStore, durable: DurableFile) -> None:
        """`durable`: which the store closes."""
        self.store = store
        self._durable = durable
        self._unsynced_bytes = 0

    @classmethod
    def open(cls, disk: Disk, path: str, config: StoreConfig) -> CopiedLog:
        """Raises DirectoryDamaged, StoreFailure; FileNotFoundError without a file `durable`."""
        durable = DurableFile.open(disk, path)
        try:
            store, _ = FileLedgerStore.recover(disk, path, config, durable)
        except BaseException:
            durable.close()
            raise
        return cls(store, durable)

    @property
    def end(self) -> LogPoint:
        return self.store.end

    def append(self, batch: EntryBatch) -> None:
        """Checked entries. Raises ProtocolViolation if they do not go on with the log, byte for byte;
        DiskFull, StoreFailure."""
        store, end = self.store, self.store.end
        first = batch.first_header
        if (first.index, batch.chain_before) != (end.index + 1, end.chain) or first.term < end.term:
            raise ProtocolViolation(
                f"entry {first.index} of term {first.term} does not go on with entry {end.index} of term"
                f" {end.term}"
            )
        if not batch.lies_at(store.plan(batch.sizes)):
            raise ProtocolViolation(
                f"the entries from {first.index} on lie elsewhere than segments of this length put them"
            )
        store.append(batch)
        self._unsynced_bytes += batch.total_bytes
        if self._unsynced_bytes >= SYNC_BYTES:
            self.sync()

    def append_own(self, batch: EntryBatch, term: int) -> None:
        """Unstamped entries, behind those that were copied. Raises DiskFull, StoreFailure."""
        store, end = self.store, self.store.end
        positions = store.plan(batch.sizes, control=True)
        batch.stamp(end.index + 1, term, positions, end.chain)
        store.append(batch)

    def sync(self) -> None:
        """Everything is on disk when this returns. Raises StoreFailure."""
        task = self.store.begin_sync()
        if task is not None:
            task.run()
            self.store.finish_sync(task)
        give_back: Callable[[], None] | None = self.store.outgrown_cache()
        if give_back is not None:
            give_back()
        durable = self._durable.load()
        assert durable is not None, "the log was recovered"
        self._durable.record_both_synced(durable)
        self._unsynced_bytes = 0

    def close(self) -> None:
        with suppress(OSError):
            self.store.close()
