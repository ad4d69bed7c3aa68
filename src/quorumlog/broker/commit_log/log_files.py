"""LogFiles: the files of a commit log, and records read from them."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.message_log import LogRecords
from quorumlog.broker.messages.java_strings import gather
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.messages.record_scan import Stop, scan_records
from quorumlog.store.disk import reason_of
from quorumlog.store.segments import SegmentList

READ_BYTES = 4 << 20
FIRST_READ_BYTES = 64 << 10


def read_records(
    files: SegmentList, position: int, stop_position: int, *, most_bytes: int = READ_BYTES
) -> tuple[LogRecords | None, Stop]:
    """Records that end at `stop_position` or before, of one file; and why there are no more. Raises
    OSError."""
    file_stop = files.stop_of(position)
    stop = min(stop_position, file_stop)
    wanted = most_bytes
    while True:
        asked = min(wanted, stop - position)
        # A file that a crash has left short is read as what a start makes of it.
        data = files.pread(asked, position).ljust(asked, b"\0")
        scan = scan_records(data)
        is_short = scan.stop is Stop.BYTES and not len(scan.starts)
        if not is_short or position + len(data) >= stop or scan.wanted_bytes <= len(data):
            break
        wanted = scan.wanted_bytes
    stopped = scan.stop
    next_position = position + scan.stop_at
    if stopped is Stop.BLANK:
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
    if not count:
        return None
    part = RecordBatch(records.buffer, records.starts[:count], records.sizes[:count])
    return LogRecords(found.position, part, int(ends[count - 1]))


def verified(
    records: LogRecords, *, check_bodies: bool, torn_from: int = sys.maxsize
) -> tuple[int, str]:
    """How many of them are good from the first on, and what is wrong with the next one.

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
        bad = np.flatnonzero(~good)
        if len(bad) and bad[0] < first:
            first, problem = int(bad[0]), what
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
