"""Where a commit log ends, found by looking at its records from a file on that the checkpoint names."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quorumlog.broker.commit_log.log_files import READ_BYTES, read_records, verified
from quorumlog.broker.message_log import LogRecords
from quorumlog.broker.messages.record import LEAST_RECORD_BYTES
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.messages.record_scan import Stop
from quorumlog.errors import DirectoryDamaged, StoreFailure
from quorumlog.store.disk import is_no_damage, reason_of, refusal
from quorumlog.store.recovery import SetAside
from quorumlog.store.segments import SegmentList

log = logging.getLogger("quorumlog.broker")


@dataclass
class LogEnd:
    """What a walk found so far."""

    position: int
    """Behind the last good record."""
    last_time_ms: int = 0
    problem: str = ""
    """Why the record there is none; empty: nothing was ever written there."""


def walk(
    files: SegmentList,
    position: int,
    end: LogEnd,
    *,
    check_bodies: bool,
    torn_from: int = sys.maxsize,
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
            if stop is Stop.NO_RECORD or stop is Stop.BYTES:
                end.problem = "is no record"
            return
        good, problem = verified(found, check_bodies=check_bodies, torn_from=torn_from)
        if problem:
            batch = found.records
            found = LogRecords(
                position,
                RecordBatch(batch.buffer, batch.starts[:good], batch.sizes[:good]),
                position + int(batch.starts[good]),
            )
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
    file = files.file_at(base)
    assert file is not None, base
    try:
        found, _ = read_records(files, base, file.end_position, most_bytes=READ_BYTES)
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
    return files.base_of(position) if files.first_position < position <= files.end_position else (
        files.first_position
    )  # fmt: skip


def settle_end(
    files: SegmentList,
    end: LogEnd,
    flushed_position: int,
    set_aside: SetAside,
    written: Callable[[int], None],
) -> str:
    """Zeros behind the last good record; what was cut off is set aside, in the file that is returned.
    `written` is told where the log ends before that, and once all of it is on disk.

    Raises DirectoryDamaged if the log was known to be on disk further than that: then a record that
    somebody may have been promised is damaged, and nothing is cut.
    """
    if end.position < flushed_position:
        what = f"the record at {end.position} {end.problem or 'is missing'}"
        path = files.path_of(end.position)
        raise DirectoryDamaged(
            f"{path}: {what}, and the commit log was on disk up to {flushed_position}: restore the file,"
            f" or give up what follows with: quorumlog broker recover DIR",
            path=path,
            position=end.position,
        )
    cut, target = _written_behind(files, end.position), ""
    if cut > end.position:
        target = set_aside.new_name(f"commitlog-{end.position:020d}")
        set_aside.write(target, _pieces(files, end.position, cut))
        log.warning(
            "the commit log ends at %d: %d bytes behind it (%s) are kept in %s",
            end.position,
            cut - end.position,
            end.problem or "of no record",
            target,
        )
    try:
        if flushed_position < end.position:
            _sync(files, flushed_position, end.position)
        # Also of a file that holds nothing yet: what is written there next is synced, and not its name.
        files.sync_names()
    except OSError as error:
        raise StoreFailure(refusal(files.path_of(end.position), "synced", error)) from error
    written(end.position)
    try:
        # A file that holds nothing may have a wrong length of space, which the next write puts right.
        file = files.discard_from(end.position, end.position, end.position)
        if file is not None:
            file.sync()
    except OSError as error:
        raise StoreFailure(refusal(files.path_of(end.position), "cut", error)) from error
    return target


def _sync(files: SegmentList, position: int, stop: int) -> None:
    """What a killed process had written there is in the cache, and not on disk for all that is known."""
    for base in range(files.base_of(position), stop, files.segment_bytes):
        file = files.file_at(base)
        if file is not None:
            file.sync()


def _written_behind(files: SegmentList, position: int) -> int:
    """Behind the last byte that is not zero, in the file that holds `position` and those behind it."""
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
        elif last < position - LEAST_RECORD_BYTES and position % files.segment_bytes == 0:
            pass
        position += len(data) or 4096
    return last


def _pieces(files: SegmentList, position: int, stop: int) -> Iterator[bytes]:
    while position < stop:
        try:
            data = files.pread(
                min(READ_BYTES, stop - position, files.stop_of(position) - position), position
            )
        except OSError:
            data = bytes(min(4096, stop - position))
        if not data:
            return
        yield data
        position += len(data)
