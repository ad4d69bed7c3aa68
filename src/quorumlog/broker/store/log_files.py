"""The files of a commit log: found, read and scanned, and the offset known to be on disk."""

from __future__ import annotations

import errno
import logging
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.message import PutMessageResult
from quorumlog.broker.record_batch import RecordBatch, ScanStop, gather, scan_records
from quorumlog.config import StoreConfig
from quorumlog.errors import ConfigError, DirectoryDamaged, LedgerError, StoreFailure
from quorumlog.store.disk import (
    Disk,
    disk_work,
    is_folder,
    is_no_damage,
    kept_descriptors,
    reason_of,
)
from quorumlog.store.recovery import SetAside
from quorumlog.store.segment import Segment
from quorumlog.store.segments import NAME_DIGITS, SegmentList, segment_name
from quorumlog.store.slot_file import SlotFile

# ---------------------------------------------------------------- MessageLog
# What a message store needs of the log below it. `CommitLog` is one; another may be replicated.


class BrokerRole(Enum):
    """Of a broker, by RocketMQ's names."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


PutOutcome = PutMessageResult | LedgerError


class PutRequest(NamedTuple):
    """Records of one queue, put together or not at all."""

    records: RecordBatch
    """Without gaps, and writable: the log fills in its own fields."""
    waits: bool
    """For the log's flush and its slaves."""
    done: Callable[[PutOutcome], None]
    """Called once, from any thread."""


class LogRecords(NamedTuple):
    """Records as they lie in the log."""

    position: int
    """Of the first byte of `records.buffer`."""
    records: RecordBatch
    next_position: int
    """Where to continue: after the last record, or after the blank that follows it."""


class MessageLog(Protocol):
    @property
    def min_offset(self) -> int:
        """The first byte that there is."""

    @property
    def max_offset(self) -> int:
        """After the last record that was written."""

    @property
    def confirm_offset(self) -> int:
        """Consumers see nothing from here on: messages below stay, under any next master."""

    def put(self, requests: Sequence[PutRequest]) -> None:
        """Write them as one batch; each is answered by its own `done`. Raises StoreFailure."""

    def read(self, position: int, stop_position: int) -> LogRecords | None:
        """Whole records from a position at which one begins; None: there are none below `stop_position`.
        Any thread. Raises MessageDamaged."""

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Any thread; shorter where the log ends. Raises OSError."""


# ----------------------------------------------------------------
# Opening a folder of equal files that are named by their first byte: commit log and queues.

log = logging.getLogger("quorumlog.broker")

LARGEST_NAMED_SEGMENT = 2 * (1 << 30) - 1


def delete_files(disk: Disk, folder: str, names: Sequence[str] | None = None) -> None:
    """Gone for good when this returns. `names`: None: all. Raises StoreFailure."""
    with disk_work(folder, "deleted"):
        gone = disk.list(folder) if names is None else names
        for name in gone:
            disk.unlink(f"{folder}/{name}")
        if gone:
            disk.sync_directory(folder)


def sync_files(files: SegmentList, position: int, stop: int) -> None:
    """Those that hold this range, but for files that retention has deleted meanwhile. Raises OSError."""
    for base in range(files.base_of(position), stop, files.segment_bytes):
        file = files.file_at(base)
        if file is not None and file.acquire():
            try:
                file.sync()
            finally:
                file.release()


def set_aside_of(disk: Disk, root: str, max_bytes: int, file_bytes: int) -> SetAside:
    """`ROOT/set-aside`: never in a folder that Java reads."""
    segment_bytes = max(512, min(file_bytes, LARGEST_NAMED_SEGMENT))
    return SetAside(disk, root, StoreConfig(max_set_aside_bytes=max_bytes, segment_bytes=segment_bytes))


def is_file_name(name: str, digits: int = NAME_DIGITS) -> bool:
    return len(name) == digits and name.isascii() and name.isdigit()


def file_sizes(disk: Disk, folder: str) -> dict[int, int]:
    """Size by first byte, of files that have such a name."""
    return {
        int(name): disk.size_of(f"{folder}/{name}") for name in disk.list(folder) if is_file_name(name)
    }


def open_file_list(
    disk: Disk,
    folder: str,
    file_bytes: int,
    *,
    option: str = "mapped_file_size_commit_log",
    set_aside: SetAside | None = None,
    writable: bool = True,
    sizes_are_known: bool = False,
) -> SegmentList:
    """Other files are set aside (`set_aside`), or left alone: Java would refuse the folder. Folders
    stay, such as `lost+found` of a disk that is mounted there. `sizes_are_known`: a shorter file was
    being cut when a crash came, and gets its length back, or is read as if it had it. Raises ConfigError
    where files have another size, StoreFailure where one is missing."""
    sizes = file_sizes(disk, folder)
    if sizes_are_known:
        for base in [base for base, size in sizes.items() if size < file_bytes]:
            if writable:
                with closing(disk.open(f"{folder}/{segment_name(base)}")) as short:
                    short.set_size(file_bytes)
                    short.sync()
            sizes[base] = file_bytes
    elif sizes and file_bytes not in sizes.values() and max(sizes.values()) > 0:
        found = max(sizes.values())
        raise ConfigError(
            f"the files in {folder} have {found} bytes, not {file_bytes}: set {option} to {found}"
        )
    if sizes and sizes[max(sizes)] == 0:
        del sizes[max(sizes)]  # RocketMQ makes the next file before it has its length
    for base, size in sizes.items():
        if size != file_bytes or base % file_bytes:
            raise ConfigError(
                f"{folder}/{segment_name(base)} has {size} bytes where files have {file_bytes}"
                f" ({option}): it was cut, or is of another store. Restore it from a copy"
            )
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if set_aside is None or (is_file_name(name) and int(name) in sizes) or is_folder(disk, path):
            continue
        try:
            kept = set_aside.take(path, f"{folder.rsplit('/', 1)[-1]}-{name}")
        except OSError as error:
            if error.errno != errno.EXDEV:  # a disk of its own is mounted there
                raise
            log.warning("%s does not belong there, and is left alone", path)
            continue
        log.warning("%s does not belong there: moved to %s", path, kept)
    bases = sorted(sizes)
    files = SegmentList(disk, folder, file_bytes, bases[0] if bases else 0)
    with kept_descriptors.parking(files.park):
        for base in bases:
            if base != files.end_position:
                files.close()
                raise StoreFailure(
                    f"{folder}/{segment_name(files.end_position)} is missing between others: restore it."
                    " Of a Java broker's commit log it may lie on another of the paths that its"
                    " storePathCommitLog names: copy the files of all of them into that folder"
                )
            path = f"{folder}/{segment_name(base)}"
            with disk_work(path, "opened"):
                files.adopt(Segment.open(disk, path, base, file_bytes, writable=writable))
    files.reserved_position = files.end_position if not writable else files.first_position
    return files


# ---------------------------------------------------------------- FlushedFile
# Up to where the commit log is known to be on disk (`ROOT/flushed`, a file of ours).
#
#     payload of a slot (slot_file.py), big-endian
#     offset  bytes  field
#          0      8  position after the last record that is known to be on disk
#          8      8  bytes of a file of the commit log
#         16      8  bytes of a file of a queue
#
# What is bad above is the torn end of a crash and may be cut; what is bad below is damage and may not.
# RocketMQ has no such file, and cuts a log at the first bad record wherever it lies.

FLUSHED_NAME = "flushed"
FLUSHED_MAGIC = b"qlflsh 1"
_FLUSHED = struct.Struct(">qqq")


def flushed_of(payload: bytes) -> tuple[int, int, int]:
    """The position, and the two sizes."""
    found: tuple[int, int, int] = _FLUSHED.unpack_from(payload)
    return found


class FlushedFile:
    """Any thread."""

    def __init__(self, slots: SlotFile, file_bytes: int, queue_bytes: int) -> None:
        self._slots = slots
        self._sizes = file_bytes, queue_bytes
        self._lock = threading.Lock()

    @classmethod
    def open(cls, disk: Disk, root: str, file_bytes: int, queue_bytes: int) -> FlushedFile:
        """Made if it is not there, with 0. Raises ConfigError where it was made for other sizes."""
        path = f"{root}/{FLUSHED_NAME}"
        try:
            slots = SlotFile.open(disk, path, FLUSHED_MAGIC)
        except FileNotFoundError:
            payload = _FLUSHED.pack(0, file_bytes, queue_bytes)
            slots = SlotFile.create(disk, path, FLUSHED_MAGIC, payload)
            disk.sync_directory(root)
        opened = cls(slots, file_bytes, queue_bytes)
        if slots.payload is not None:
            options = "mapped_file_size_commit_log", "mapped_file_size_consume_queue"
            sizes = flushed_of(slots.payload)[1:]
            for option, held, configured in zip(options, sizes, opened._sizes, strict=True):
                if held != configured:
                    opened.close()
                    raise ConfigError(
                        f"{root} was made with {option} = {held}, not {configured}: set it so"
                    )
        return opened

    def load(self) -> int:
        """0 if no slot is good: then nothing is known."""
        with self._lock:
            payload = self._slots.payload
        return 0 if payload is None else flushed_of(payload)[0]

    def record(self, position: int) -> None:
        """Not synced: a killed process loses nothing of it."""
        with self._lock:
            self._slots.write(_FLUSHED.pack(position, *self._sizes))

    def record_synced(self, position: int) -> None:
        """Lower, too."""
        with self._lock:
            self._slots.write_both_synced(_FLUSHED.pack(position, *self._sizes))

    def close(self) -> None:
        with self._lock:
            self._slots.close()


# ---------------------------------------------------------------- LogFiles
# The files of a commit log, and records read from them.

READ_BYTES = 4 << 20


def read_records(
    files: SegmentList, position: int, stop_position: int
) -> tuple[LogRecords | None, ScanStop]:
    """Records that end at `stop_position` or before, of one file; and why there are no more. Raises
    OSError."""
    file_stop = files.stop_of(position)
    stop = min(stop_position, file_stop)
    wanted = READ_BYTES
    while True:
        size_bytes = min(wanted, stop - position)
        # A file that a crash has left short is read as what a start makes of it.
        data = files.pread(size_bytes, position).ljust(size_bytes, b"\0")
        scan = scan_records(data)
        is_short = scan.stop is ScanStop.BYTES and not len(scan.starts)
        if not is_short or position + len(data) >= stop or scan.wanted_bytes <= len(data):
            break
        wanted = scan.wanted_bytes
    stopped = scan.stop
    next_position = position + scan.stop_at
    if stopped is ScanStop.BLANK:
        next_position = file_stop
    elif not len(scan.starts):
        return None, stopped
    buffer = memoryview(data)[: scan.stop_at]
    return LogRecords(position, RecordBatch(buffer, scan.starts, scan.sizes), next_position), stopped


def records_below(found: LogRecords, stop_position: int) -> LogRecords | None:
    """Those of them that end there or before; None: there are none."""
    if found.next_position <= stop_position:
        return found
    records = found.records
    ends = records.starts + records.sizes + found.position
    count = int((ends <= stop_position).sum())
    return first_records(found, count, int(ends[count - 1])) if count else None


def first_records(found: LogRecords, count: int, next_position: int) -> LogRecords:
    records = found.records
    part = RecordBatch(records.buffer, records.starts[:count], records.sizes[:count])
    return LogRecords(found.position, part, next_position)


def verified(
    records: LogRecords, *, check_bodies: bool, torn_from: int = sys.maxsize
) -> tuple[int, str]:
    """How many of them are good from the first on, and the fault of the next one.

    `torn_from`: from there on a crash may have left holes. The format has a CRC of bodies only; a hole
    in topic or properties shows as a byte that is zero, which neither is ever given.
    """
    batch = records.records
    if not len(batch):
        return 0, ""
    columns = batch.columns
    checks = [
        (columns.good, "has not the shape of a record"),
        (columns.physical_offsets == batch.starts + records.position, "names another position"),
    ]
    if records.position + int(batch.starts[-1]) >= torn_from:
        is_whole = ~_has_zeros(batch) | (batch.starts + records.position < torn_from)
        checks.append((is_whole, "is torn"))
    first, problem = len(batch), ""
    for good, what in checks:
        if not good[:first].all():
            first, problem = int(np.argmin(good)), what
    if check_bodies and first:
        good = batch.select(np.arange(first)).bodies_good()
        if not good.all():
            first, problem = int(np.argmin(good)), "has a body that its CRC does not match"
    return first, problem


def _has_zeros(batch: RecordBatch) -> npt.NDArray[np.bool_]:
    columns = batch.columns
    starts = np.where(columns.good, columns.topic_starts, batch.starts)
    sizes = np.where(columns.good, batch.starts + batch.sizes - starts, 1)
    # The length of the properties lies between both, and may have a zero.
    lengths = np.where(columns.good, columns.property_starts - 2, batch.starts)
    pieces, begins = gather(batch.data, starts, sizes)
    is_zero = pieces == 0
    for byte in (0, 1):
        is_zero[begins + np.where(columns.good, lengths - starts + byte, 0)] = False
    found: npt.NDArray[np.bool_] = np.logical_or.reduceat(is_zero, begins)
    return found


def damaged(path: str, position: int, error: Exception | str) -> MessageDamaged:
    reason = error if isinstance(error, str) else reason_of(error)
    return MessageDamaged(
        f"the record at {position} in {path} {reason}; run: quorumlog broker verify DIR"
    )


# ----------------------------------------------------------------
# Where a commit log ends, found by looking at its records from a file on that the checkpoint names.


@dataclass
class LogEnd:
    """The result of a walk so far."""

    position: int
    """After the last good record."""
    last_time_ms: int = 0
    problem: str = ""
    """Why the record there is none; empty: nothing was ever written there."""


def walk(
    files: SegmentList, position: int, end: LogEnd, *, check_bodies: bool, torn_from: int = sys.maxsize
) -> Iterator[LogRecords]:
    """Good records from `position` on, until the log ends, which `end` then says. Raises OSError if the
    process may not read."""
    end.position = position
    while position < files.end_position:
        try:
            found, stop = read_records(files, position, files.end_position)
        except OSError as error:
            if is_no_damage(error):
                raise
            end.problem = f"cannot be read: {reason_of(error)}"
            return
        if found is None:
            if stop is ScanStop.NO_RECORD or stop is ScanStop.BYTES:
                end.problem = "is no record"
            return
        good, problem = verified(found, check_bodies=check_bodies, torn_from=torn_from)
        if problem:
            found = first_records(found, good, position + int(found.records.starts[good]))
        if len(found.records):
            times = found.records.columns.store_times_ms
            end.last_time_ms = max(end.last_time_ms, int(times.max()))
        position = end.position = found.next_position
        if len(found.records) or not problem:
            yield found
        if problem:
            end.problem = problem
            return


def first_time_ms(files: SegmentList, base: int) -> int:
    """Store time of a file's first record; -1 if it begins with none."""
    try:
        found, _ = read_records(files, base, files.stop_of(base))
    except OSError:
        return -1
    if found is None or not len(found.records) or not found.records.columns.good[0]:
        return -1
    return int(found.records.columns.store_times_ms[0])


def start_by_time(files: SegmentList, time_ms: int) -> int:
    """The newest file whose first record was stored at this time or before; else the first."""
    for base in reversed(files.bases):
        first = first_time_ms(files, base)
        if 0 <= first <= time_ms:
            return base
    return files.first_position


def start_by_position(files: SegmentList, position: int) -> int:
    """The file in which the queues end; the first, if they are lost."""
    is_there = files.first_position < position <= files.end_position
    return files.base_of(position) if is_there else files.first_position


def settle_end(
    files: SegmentList,
    end: LogEnd,
    flushed_position: int,
    set_aside: SetAside,
    written: Callable[[int], None],
) -> str:
    """Zeros after the last good record; the rest is set aside, in the file that is returned. `written`
    is called with the log's end before that, and once all of it is on disk.

    Raises DirectoryDamaged if the log was known to be on disk further than that: then a record that may
    have been acknowledged is damaged, and nothing is cut.
    """
    if end.position < flushed_position:
        what = f"the record at {end.position} {end.problem or 'is missing'}"
        path = files.path_of(end.position)
        raise DirectoryDamaged(
            f"{path}: {what}, and the commit log was on disk up to {flushed_position}: restore the file,"
            f" or give up the rest with: quorumlog broker recover DIR",
            path=path,
            position=end.position,
        )
    cut, target = _written_behind(files, end.position), ""
    if cut > end.position:
        target = set_aside.new_name(f"commitlog-{end.position:020d}")
        set_aside.write(target, _pieces(files, end.position, cut))
        log.warning(
            "the commit log ends at %d: %d bytes after it (%s) are kept in %s",
            end.position,
            cut - end.position,
            end.problem or "of no record",
            target,
        )
    with disk_work(files.path_of(end.position), "synced"):
        if flushed_position < end.position:
            # For all that is known, what a killed process had written there is in the cache alone.
            sync_files(files, flushed_position, end.position)
        # Also of a file that holds nothing yet: what is written there next is synced, and not its name.
        files.sync_names()
    written(end.position)
    with disk_work(files.path_of(end.position), "cut"):
        # A file that holds nothing may have a wrong length of space, which the next write puts right.
        file = files.discard_from(end.position, end.position, end.position)
        if file is not None:
            file.sync()
    return target


def _written_behind(files: SegmentList, position: int) -> int:
    """After the last byte that is not zero, in the file that holds `position` and those after it."""
    last = position
    while position < files.end_position:
        position = max(files.next_data(position), position)
        if position >= files.end_position:
            break
        try:
            data = files.pread(min(READ_BYTES, files.stop_of(position) - position), position)
        except OSError:
            data = b""  # what cannot be read cannot be kept
        stripped = data.rstrip(b"\0")
        if stripped:
            last = position + len(stripped)
        position += len(data) or 4096
    return last


def _pieces(files: SegmentList, position: int, stop: int) -> Iterator[bytes]:
    while position < stop:
        try:
            data = files.pread(min(READ_BYTES, min(stop, files.stop_of(position)) - position), position)
        except OSError:
            data = bytes(min(4096, stop - position))
        if not data:
            return
        yield data
        position += len(data)
