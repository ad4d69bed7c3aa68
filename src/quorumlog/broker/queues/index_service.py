"""IndexService: `ROOT/index/`, one file behind the other; only the last is written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.flush.store_checkpoint import StoreCheckpoint
from quorumlog.broker.messages.java_strings import java_hash
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.broker.queues.index_file import IndexFile
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.recovery import SetAside

log = logging.getLogger("quorumlog.broker")

INDEX_FOLDER_NAME = "index"
_NAME_DIGITS = 17
_LOOK_KEYS = 1024
_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999."""


def key_hash_of(topic: str, key: str) -> int:
    hashed = abs(java_hash(f"{topic}#{key}"))
    return 0 if hashed == 1 << 31 else hashed


def index_file_name(time_ms: float) -> str:
    """yyyyMMddHHmmssSSS, as RocketMQ names them (there in local time)."""
    # Of a message that has one that is no date, too.
    moment = datetime.fromtimestamp(min(max(time_ms, 0), _LAST_MS) / 1000, UTC)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


class IndexService:
    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        checkpoint: StoreCheckpoint,
        wall_clock: Callable[[], float],
        set_aside: SetAside | None,
        *,
        is_clean: bool,
        writable: bool = True,
    ) -> None:
        """After an unclean stop a file with more than the checkpoint vouches for is deleted, and derived
        anew. Raises StoreFailure."""
        self.path = f"{root}/{INDEX_FOLDER_NAME}"
        self._disk = disk
        self._config = config
        self._checkpoint = checkpoint
        self._wall_clock = wall_clock
        self.files: list[IndexFile] = []
        for name in disk.list(self.path):
            path = f"{self.path}/{name}"
            known = len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()
            if not known or disk.size_of(path) != config.index_file_bytes:
                if set_aside is not None:
                    kept = set_aside.take(path, f"index-{name}")
                    log.warning("%s does not belong there: moved to %s", path, kept)
                continue
            try:
                file = IndexFile(
                    path,
                    disk.open(path, writable=writable),
                    config.max_hash_slot_num,
                    config.max_index_num,
                    slots_are_good=is_clean,
                )
            except OSError as error:
                raise StoreFailure(refusal(path, "opened", error)) from error
            if not is_clean and file.end_time_ms > checkpoint.index_msg_timestamp:
                file.close()
                disk.unlink(path)
                continue
            file.mend()
            self.files.append(file)

    @property
    def end_position(self) -> int:
        """Of the last record in it; -1 of an empty index."""
        return max((file.end_position for file in self.files if file.count > 1), default=-1)

    def put(self, records: RecordBatch, record_positions: Int64Array) -> None:
        """Keys of records, each at its position in the log. Raises DiskFull, StoreFailure."""
        keys = records.index_keys()
        if not len(keys.rows):
            return
        positions = record_positions[keys.rows]
        times = records.columns.store_times_ms[keys.rows]
        self.put_keys(keys.hashes, positions, times, self._held_of(positions))

    def _held_of(self, positions: Int64Array) -> int:
        """Records that are dispatched again after a crash may be in it already; of the last one some
        keys only, where the next ones were to go into a new file."""
        end = self.end_position
        below = int((positions < end).sum())
        if below == len(positions) or positions[below] != end:
            return below
        of_record, held = int((positions == end).sum()), 0
        for file in reversed(self.files):
            stop = file.count
            while stop > 1:
                first = max(1, stop - _LOOK_KEYS)
                of_end = file.keys(first, stop)[1] == end
                held += int(of_end.sum())
                if not of_end.all():
                    return below + min(held, of_record)
                stop = first
        return below + min(held, of_record)

    def put_keys(
        self, hashes: Int64Array, positions: Int64Array, times: Int64Array, first: int = 0
    ) -> None:
        """From the key number `first` on. Raises DiskFull, StoreFailure."""
        while first < len(positions):
            file = self._writable_file()
            stop = min(len(positions), first + file.room)
            file.put(hashes[first:stop], positions[first:stop], times[first:stop])
            first = stop

    def _writable_file(self) -> IndexFile:
        if self.files and not self.files[-1].is_full:
            return self.files[-1]
        if self.files:
            self.flush()
        name = index_file_name(self._wall_clock())
        if self.files:
            # The one before may be named by a clock that is hours ahead: a Java broker's by local time.
            # Names are sorted and never read as times.
            after = int(self.files[-1].path.rpartition("/")[2]) + 1
            name = max(name, f"{after:0{_NAME_DIGITS}d}")
        path = f"{self.path}/{name}"
        last = self.files[-1] if self.files else None
        file = IndexFile.create(
            self._disk,
            path,
            self._config.max_hash_slot_num,
            self._config.max_index_num,
            end_position=0 if last is None else last.end_position,
            end_time_ms=0 if last is None else last.end_time_ms,
        )
        self.files.append(file)
        return file

    def flush(self) -> None:
        """The checkpoint advances after it."""
        if not self.files:
            return
        file = self.files[-1]
        time_ms = file.end_time_ms
        file.flush()
        self._checkpoint.index_msg_timestamp = max(self._checkpoint.index_msg_timestamp, time_ms)

    def find(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> list[int]:
        """Positions of records that may have the key, the newest first. Any thread. Raises OSError."""
        hashed = key_hash_of(topic, key)
        found: list[int] = []
        for file in reversed(self.files.copy()):
            if file.count > 1 and file.begin_time_ms <= end_ms and file.end_time_ms >= begin_ms:
                found += file.find(hashed, most - len(found), begin_ms, end_ms)
            if len(found) >= most:
                break
        return found

    def clear(self) -> None:
        """To be derived anew."""
        for file in self.files:
            file.close()
            self._disk.unlink(file.path)
        self.files.clear()

    def truncate_to_position(self, position: int) -> bool:
        """Files that know of records from there on are deleted. True: there were some."""
        count = len(self.files)
        while self.files and self.files[-1].end_position >= position:
            file = self.files.pop()
            file.close()
            self._disk.unlink(file.path)
        return len(self.files) < count

    def drop_before(self, position: int) -> None:
        """Files whose last record lies below are deleted; not the last one."""
        while len(self.files) > 1 and self.files[0].end_position < position:
            file = self.files.pop(0)
            self._disk.unlink(file.path)

    def close(self) -> None:
        for file in self.files:
            file.close()
