"""Converter: a classic store made of the messages of a replicated log. Their order, queue offsets, times
and properties stay, UNIQ_KEY too; where they lie changes, and with it their message ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import NamedTuple

import numpy as np

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.message import BLANK_BYTES, blank_record
from quorumlog.broker.offline.offline_ledger import OfflineLedger
from quorumlog.broker.offline.old_log import OldLog, taken_over
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.java_store import CONFIG_FOLDER_NAME
from quorumlog.broker.store.log_files import is_file_name
from quorumlog.broker.store.message_store import COMMIT_LOG_NAME, MessageStore
from quorumlog.broker.store.queues import QueueEnd, QueueEnds
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.directory_kind import CONVERTING_NAME, DirectoryKind, kind_of
from quorumlog.store.disk import Disk, OsDisk, refusal
from quorumlog.store.segments import SegmentList
from quorumlog.store.state_files import read_file, replace_file


class Converted(NamedTuple):
    messages: int
    size_bytes: int
    """Of the records."""
    end_position: int
    """Of the commit log that was made."""
    left_out: int
    """Entries at the end that are not known to be committed."""


def convert_to_classic(
    source: str, target: str, config: MessageStoreConfig | None = None, disk: Disk | None = None
) -> Converted:
    """Raises ConfigError where `target` holds a store already or `source` no log of messages,
    DirectoryDamaged, DiskFull, StoreFailure; what is half done then is no store, and may be deleted."""
    disk = OsDisk() if disk is None else disk
    config = config or MessageStoreConfig()
    if disk.exists(target) and disk.list(target):
        raise ConfigError(f"{target} is not empty: name a directory for the new store")
    with OfflineLedger(source, disk) as ledger:
        batches = ledger.batches()
        first = next(batches, None)
        if first is None and taken_over(disk, ledger.folder) is None:
            committed = max(ledger.stop_index - ledger.first_index, 0)
            raise ConfigError(
                f"{source} holds no messages: none of its {committed} committed entries is one; name the"
                " directory of a broker on a replicated log"
            )
        _refuse_earlier_log(disk, source)
        unfinished = f"{target}/{CONVERTING_NAME}"
        folder = f"{target}/{COMMIT_LOG_NAME}"
        try:
            disk.make_directory(unfinished)
            files = SegmentList(disk, unfinished, config.mapped_file_size_commit_log, 0)
            messages = size_bytes = position = 0
            for old in _of_old_log(disk, ledger.folder):
                position = _write(files, old.joined(), position, config)
                messages += len(old)
                size_bytes += old.total_bytes
            for found in chain([] if first is None else [first], batches):
                position = _write(files, found.records.joined(), position, config)
                messages += len(found.records)
                size_bytes += found.records.total_bytes
            for file in files.files:
                file.sync()
            files.close()
            _note_queues(disk, target, _queue_ends(disk, ledger))
            _copy_config(disk, source, target)
            # A store is there once all of it is: the name comes last.
            disk.rename(unfinished, folder)
            disk.sync_directory(target)
        except OSError as error:
            raise StoreFailure(refusal(target, "written", error)) from error
        left_out = max(ledger.end_index + 1 - ledger.stop_index, 0)
    # Queues, index and checkpoint follow from the log.
    MessageStore(target, config, disk=disk).close()
    return Converted(messages, size_bytes, position, left_out)


def _queue_ends(disk: Disk, ledger: OfflineLedger) -> dict[QueueKey, int]:
    record = taken_over(disk, ledger.folder)
    old = [] if record is None else record.queues
    ends = {QueueKey(topic, queue_id): end for topic, queue_id, end in old}
    return ends | ledger.queue_ends()


def _note_queues(disk: Disk, target: str, ends: dict[QueueKey, int]) -> None:
    """Those that have no message any more go on with their next number all the same; of the others the
    log says it. Raises StoreFailure."""
    QueueEnds(disk, target).save(
        [QueueEnd(key.topic, key.queue_id, end, end) for key, end in sorted(ends.items())]
    )


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


def _of_old_log(disk: Disk, folder: str) -> Iterator[RecordBatch]:
    """What was taken over, below the first entry. Raises DirectoryDamaged, StoreFailure."""
    record = taken_over(disk, folder)
    if record is None:
        return
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
