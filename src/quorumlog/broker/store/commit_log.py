"""CommitLog: the `MessageLog` of one machine, flushed as configured."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quorumlog.broker.errors import MessageIllegal, NotMaster, StoreStopped, UnknownTopic
from quorumlog.broker.message import (
    BLANK_BYTES,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    TRANSACTION_BITS,
    V4_BYTES,
    PutMessageResult,
    PutStatus,
    RecordParts,
    blank_record,
    crc_of,
)
from quorumlog.broker.record_batch import Int64Array, QueueKey, RecordBatch
from quorumlog.broker.store.flush import FlushDone, FlushService
from quorumlog.broker.store.log_files import (
    BrokerRole,
    FlushedFile,
    LogRecords,
    PutRequest,
    damaged,
    read_records,
    sync_files,
)
from quorumlog.errors import BadRequest, BodyTooLarge, DiskFull, LedgerError, StoreFailure
from quorumlog.store.segment import PAGE_BYTES
from quorumlog.store.segments import SegmentList

if TYPE_CHECKING:
    from quorumlog.broker.store.message_store import MessageStore

# ---------------------------------------------------------------- PutTurn
# Requests that are put together, checked and stamped as one batch of records.

QueueCheck = Callable[[QueueKey], bool]


class RequestRun(NamedTuple):
    """Requests that lie one after the other in one file."""

    first: int
    stop: int
    position: int
    blank_at: int
    """Where the file before it is closed with a blank; -1: it is not."""


class PutBatch:
    def __init__(
        self,
        requests: Sequence[PutRequest],
        file_bytes: int,
        takes: QueueCheck,
        *,
        kept_property_bytes: int = 0,
    ) -> None:
        """Requests that are refused are answered here; the others are `requests`. `kept_property_bytes`:
        messages leave so much room in their properties for those of a retry."""
        self._file_bytes = file_bytes
        self._takes = takes
        self._kept_property_bytes = kept_property_bytes
        self.ends: Int64Array
        """Bytes up to and with each request."""
        self.requests = list(requests)
        while self.requests:
            self._join()
            refused = self._refusals()
            if not refused:
                break
            for number, error in refused.items():
                self.requests[number].done(error)
            self.requests = [r for number, r in enumerate(self.requests) if number not in refused]

    def _join(self) -> None:
        requests = self.requests
        self.counts = np.array([len(request.records) for request in requests], np.int64)
        if len(requests) == 1:
            self.records = requests[0].records
            self.row_ends, self.row_starts = self.counts, np.zeros(1, np.int64)
            self.ends = np.array([len(self.records.buffer)])
            return
        buffer = bytearray().join([request.records.buffer for request in requests])
        sizes = np.concatenate([request.records.sizes for request in requests])
        self.records = RecordBatch.contiguous(buffer, sizes)
        self.row_ends = np.cumsum(self.counts)
        self.row_starts = self.row_ends - self.counts
        self.ends = np.cumsum(self.records.sizes)[self.row_ends - 1]

    def _refusals(self) -> dict[int, LedgerError]:
        records, refused = self.records, dict[int, LedgerError]()
        if records.lone is not None and self._takes_lone(records.lone):
            return refused
        columns = records.columns
        if not columns.good.all():
            shapeless = MessageIllegal("a record of the batch has not the shape of one")
            return dict.fromkeys(self._requests_of(~columns.good), shapeless)
        if self._kept_property_bytes:
            refused = self._without_room()
        too_large = f"a body is above the limit of {MAX_BODY_BYTES} bytes; split it"
        for mask, refusal in (
            (~records.bodies_good(), MessageIllegal("the CRC of a body does not match")),
            (columns.body_sizes > MAX_BODY_BYTES, BodyTooLarge(too_large)),
            (~records.in_queue, MessageIllegal("transaction messages are not taken")),
        ):
            refused |= dict.fromkeys(self._requests_of(mask), refusal)
        sizes = np.diff(self.ends, prepend=0)
        for number in np.flatnonzero(sizes + BLANK_BYTES > self._file_bytes).tolist():
            refused[number] = BodyTooLarge(
                f"a batch of {sizes[number]} bytes does not fit into a file of {self._file_bytes} bytes;"
                " send it in parts"
            )
        queues = records.queues
        of_row = np.full(len(records), -1)
        for number, (queue, rows) in enumerate(queues):
            of_row[rows] = number
            if not self._takes(queue):
                unknown = UnknownTopic(
                    f"there is no topic {queue.topic} with a queue {queue.queue_id}; quorumlog"
                    " broker status shows them"
                )
                refused |= dict.fromkeys(self._requests_of(of_row == number), unknown)
        if len(queues) > 1:
            low = np.minimum.reduceat(of_row, self.row_starts)
            mixed = low != np.maximum.reduceat(of_row, self.row_starts)
            for number in np.flatnonzero(mixed).tolist():
                refused[number] = MessageIllegal("a batch is for one queue of one topic")
        return refused

    def _takes_lone(self, lone: RecordParts) -> bool:
        """A single message that nothing below refuses, whose words are for the others."""
        body_stop = lone.body_at + lone.body_bytes
        return (
            lone.body_bytes <= MAX_BODY_BYTES
            and lone.size_bytes - lone.properties_at <= MAX_PROPERTIES_BYTES - self._kept_property_bytes
            and not lone.sys_flag & TRANSACTION_BITS
            and lone.size_bytes + BLANK_BYTES <= self._file_bytes
            and crc_of(self.records.buffer[lone.body_at : body_stop]) == lone.body_crc
            and self._takes(self.records.queues[0][0])
        )

    def _without_room(self) -> dict[int, LedgerError]:
        """Requests with a message that has no room for a retry."""
        columns, kept = self.records.columns, self._kept_property_bytes
        limits = MAX_PROPERTIES_BYTES - np.where(columns.reconsume_times == 0, kept, 0)
        too_large = columns.property_sizes > limits
        refused = dict[int, LedgerError]()
        for number in self._requests_of(too_large):
            start = int(self.row_starts[number])
            row = start + int(np.argmax(too_large[start:]))
            refused[number] = BadRequest(
                f"properties of {columns.property_sizes[row]} bytes are above the limit of"
                f" {limits[row]}: {kept} of {MAX_PROPERTIES_BYTES} are reserved for properties that"
                " a retry adds; put them into the body"
            )
        return refused

    def _requests_of(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
        at = np.flatnonzero(rows)
        if not len(at):
            return []
        numbers: list[int] = np.unique(np.searchsorted(self.row_ends, at, side="right")).tolist()
        return numbers

    # ---------------------------------------------------------------- with the log's lock held

    def place(self, position: int) -> list[RequestRun]:
        """A batch moves whole to the next file if it does not fit with a blank after it."""
        runs: list[RequestRun] = []
        first, count = 0, len(self.requests)
        done_bytes = 0
        blank_at = -1
        while first < count:
            left = self._file_bytes - position % self._file_bytes - BLANK_BYTES
            stop = int(np.searchsorted(self.ends, done_bytes + left, side="right"))
            if stop > first:
                runs.append(RequestRun(first, stop, position, blank_at))
                position += int(self.ends[stop - 1]) - done_bytes
                done_bytes = int(self.ends[stop - 1])
                first, blank_at = stop, -1
            else:
                assert blank_at < 0, (position, self._file_bytes)
                blank_at = position
                position += self._file_bytes - position % self._file_bytes
        return runs

    def stamp(
        self, runs: list[RequestRun], next_offsets: dict[QueueKey, int], time_ms: int, host: bytes
    ) -> None:
        """Queue offsets are given out here."""
        records = self.records
        offsets = records.numbered(next_offsets)
        if len(runs) == 1:
            positions = records.starts + runs[0].position
        else:
            positions = np.empty(len(records), np.int64)
            for run in runs:
                of_run = self.rows_of(run)
                positions[of_run] = records.starts[of_run] - self.bytes_of(run)[0] + run.position
        records.stamp(offsets, positions, time_ms, host)
        self._offsets, self._positions, self._time_ms = offsets, positions, time_ms

    def rows_of(self, run: RequestRun) -> slice:
        return slice(int(self.row_starts[run.first]), int(self.row_ends[run.stop - 1]))

    def bytes_of(self, run: RequestRun) -> tuple[int, int]:
        return int(self.ends[run.first - 1]) if run.first else 0, int(self.ends[run.stop - 1])

    # ---------------------------------------------------------------- after it is written

    def answer(self, status: PutStatus, *, waiting: bool) -> None:
        """Of requests that wait, or of those that do not."""
        firsts = self._offsets[self.row_starts].tolist()
        positions = self._positions[self.row_starts].tolist()
        counts = self.counts.tolist()
        for request, first, position, count in zip(
            self.requests, firsts, positions, counts, strict=True
        ):
            if request.waits is waiting:
                request.done(PutMessageResult(status, first, position, count, self._time_ms))

    @property
    def waits(self) -> bool:
        return any(request.waits for request in self.requests)


# ---------------------------------------------------------------- CommitLog
# A `MessageLog` of one machine's files, flushed as configured.


@dataclass(frozen=True, slots=True)
class LogReplication:
    """The interface of a master's or slave's log to replication; unused by a single broker."""

    refuses: Callable[[], LedgerError | None] = lambda: None
    """Asked before anything is written, with the log's lock held."""
    appended: Callable[[], None] = lambda: None
    """Called after each put, on its thread, before anything is flushed: slaves are sent it."""
    replicates: Callable[[int, FlushDone], None] = lambda next_offset, done: done(PutStatus.PUT_OK)
    """The log's present end, and a callback for when enough slaves have it, or the time-out."""
    flushed: Callable[[], None] = lambda: None
    """Called after each flush that moved `flushed_offset`, on its thread."""
    may_acknowledge: Callable[[], bool] = lambda: True
    """Asked last, before a put is answered as done."""


class CommitLog:
    """`put` under a lock, from any thread; `flush` from one thread; reads from any."""

    def __init__(
        self,
        store: MessageStore,
        files: SegmentList,
        flushed: FlushedFile,
        end_position: int,
        last_store_time_ms: int,
    ) -> None:
        """`end_position`: after the last record, all of it on disk."""
        self._store = store
        self.files = files
        self.config = store.config
        self.store_host = bytes(V4_BYTES)
        self.next_queue_offsets: dict[QueueKey, int] = {}
        self.failure: StoreFailure | None = None
        self.flush_service = FlushService(self, store.config)
        self.replication = LogReplication()
        self._flushed_file = flushed
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self.role = BrokerRole.ASYNC_MASTER
        self._end = (end_position, last_store_time_ms)
        """After the last record, and its store time: replaced as one."""
        self.flushed_offset = end_position
        self.replicated_offset: int | None = None
        """None: nobody else is waited for."""
        self._recent: deque[LogRecords] = deque()
        self._recent_bytes = 0
        flushed.record(end_position)

    # ---------------------------------------------------------------- MessageLog

    @property
    def min_offset(self) -> int:
        return self.files.first_position

    @property
    def max_offset(self) -> int:
        return self._end[0]

    @property
    def last_store_time_ms(self) -> int:
        return self._end[1]

    @property
    def confirm_offset(self) -> int:
        own = self.flushed_offset if self.config.is_sync_flush else self.max_offset
        return own if self.replicated_offset is None else min(own, self.replicated_offset)

    def become(self, role: BrokerRole) -> None:
        """Puts in progress are written under the old role, or refused."""
        with self._lock:
            self.role = role

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written meanwhile; puts wait."""
        with self._lock:
            yield

    def put(self, requests: Sequence[PutRequest]) -> None:
        """The future way: each request is answered by its `done`."""
        turn = PutBatch(requests, self.files.segment_bytes, self._store.has_queue)
        if not turn.requests:
            return
        try:
            with self._lock:
                next_offset = self._append(turn)
        except LedgerError as error:
            for request in turn.requests:
                request.done(error)
            return
        self.replication.appended()
        turn.answer(self._acknowledged(PutStatus.PUT_OK), waiting=False)
        if not turn.waits:
            self.submit_flush_request(next_offset, None)
            return

        def flushed(flush: PutStatus) -> None:
            def replicated(replica: PutStatus) -> None:
                # Where both fail, the replica's word goes, as in RocketMQ.
                worst = self._acknowledged(flush if replica is PutStatus.PUT_OK else replica)
                turn.answer(worst, waiting=True)

            self.replication.replicates(next_offset, replicated)

        self.submit_flush_request(next_offset, flushed)

    def _acknowledged(self, status: PutStatus) -> PutStatus:
        """What is written and may not be promised any more is an unknown outcome."""
        return status if self.replication.may_acknowledge() else PutStatus.FLUSH_SLAVE_TIMEOUT

    def submit_flush_request(self, next_offset: int, done: FlushDone | None) -> None:
        self.flush_service.submit(next_offset, self._store.clock(), done)
        if self.flush_service.wants_wakeup:
            self._store.wakeup_flush()
        if not self.config.is_sync_flush:
            self._store.wakeup_reput()

    def read(self, position: int, stop_position: int) -> LogRecords | None:
        try:
            found, _ = read_records(self.files, position, min(stop_position, self.max_offset))
        except OSError as error:
            raise damaged(self.files.path_of(position), position, error) from error
        return found

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        return self.files.pread(max(min(size_bytes, self.max_offset - position), 0), position)

    # ---------------------------------------------------------------- writing

    def _append(self, turn: PutBatch) -> int:
        """Returns where the log ends then. Raises DiskFull, StoreStopped; StoreFailure."""
        if self.failure is not None:
            raise StoreStopped(f"the store has stopped: {self.failure}")
        if self._store.cleaner.is_full:
            raise DiskFull("the disk is above disk_space_warning_level_ratio: make space on it")
        if (refused := self.replication.refuses()) is not None:
            raise refused
        if self.role is BrokerRole.SLAVE:
            raise NotMaster("this broker is a slave: send to its master")
        position, last_ms = self._end
        runs = turn.place(position)
        last = runs[-1]
        begin, stop = turn.bytes_of(last)
        end_position = last.position + stop - begin
        # Time never goes back within a log: recovery looks for the checkpoint's time from its end on.
        time_ms = max(int(self._store.wall_clock()), last_ms)
        try:
            self.files.reserve(end_position, self.config.reserve_step_bytes)
            turn.stamp(runs, self.next_queue_offsets, time_ms, self.store_host)
            for run in runs:
                self._write(turn, run)
        except StoreFailure as failure:
            self.fail(failure)
            raise StoreStopped(f"the store has stopped: {failure}") from failure
        self._end = (end_position, time_ms)
        return end_position

    def _write(self, turn: PutBatch, run: RequestRun) -> None:
        if run.blank_at >= 0:
            file = self.files.file_at(run.blank_at)
            assert file is not None, run.blank_at
            file.write([blank_record(file.end_position - run.blank_at)], run.blank_at)
            self._remember(LogRecords(run.blank_at, RecordBatch.contiguous(b"", []), file.end_position))
        begin, stop = turn.bytes_of(run)
        file = self.files.file_at(run.position)
        assert file is not None, run.position
        records = turn.records
        if stop - begin != len(records.buffer):
            rows = turn.rows_of(run)
            records = RecordBatch.contiguous(records.buffer[begin:stop], records.sizes[rows])
        file.write([records.buffer], run.position)
        self._remember(LogRecords(run.position, records, run.position + stop - begin))

    def append_replica(self, found: Sequence[LogRecords]) -> None:
        """A slave's: bytes of its master, whole records and blanks, from the end of the log on. Raises
        DiskFull, StoreStopped; StoreFailure."""
        if self.failure is not None:
            raise StoreStopped(f"the store has stopped: {self.failure}")
        with self._lock:
            assert self.role is BrokerRole.SLAVE, self.role
            position, last_ms = self._end
            if not found:
                return
            last = found[-1]
            end = last.position + len(last.records.buffer)
            self.files.reserve(end, self.config.reserve_step_bytes)
            for each in found:
                assert each.position == position, (each.position, position)
                file = self.files.file_at(position)
                assert file is not None, position
                file.write([each.records.buffer], position)
                if len(each.records):
                    last_ms = max(last_ms, int(each.records.columns.store_times_ms.max()))
                self._remember(each)
                position = each.next_position
                self._end = (position, last_ms)

    def record_synced(self, position: int) -> None:
        """That so much is on disk, or less than before."""
        self._flushed_file.record_synced(position)

    def cut(self, position: int) -> None:
        """The files were cut there, without concurrent writes, flushes or dispatches."""
        with self._lock:
            self._end = (position, self._end[1])
            self.flushed_offset = position
            if self.replicated_offset is not None:
                self.replicated_offset = min(self.replicated_offset, position)
            self._recent.clear()
            self._recent_bytes = 0
        # A put that waits for the disk waits for what is gone, also once other bytes lie there.
        self.flush_service.expire(math.inf)

    def _remember(self, records: LogRecords) -> None:
        self._recent.append(records)
        self._recent_bytes += len(records.records.buffer)
        while self._recent and self._recent_bytes > self.config.recent_bytes:
            self._recent_bytes -= len(self._recent.popleft().records.buffer)

    def take_recent(self, position: int) -> LogRecords | None:
        """Records written from there on, if still in memory; removes them. For dispatching."""
        with self._lock:
            while self._recent and self._recent[0].position <= position:
                records = self._recent.popleft()
                self._recent_bytes -= len(records.records.buffer)
                if records.position == position:
                    return records
        return None

    def fail(self, failure: StoreFailure) -> None:
        """Nothing is written any more; waiting puts get OutcomeUnknown."""
        if self.failure is not None:
            return
        self.failure = failure
        self.flush_service.fail()
        self._store.has_failed(failure)

    # ---------------------------------------------------------------- flushing

    def flush(self, least_pages: int) -> None:
        """Sync all written bytes, unless fewer pages than `least_pages` (0: any). A new file and its
        name are synced before anything is written into it (`SegmentList.reserve`). Any thread."""
        with self._flush_lock:
            before = self.flushed_offset
            self._flush(least_pages)
        if self.flushed_offset > before:
            self.replication.flushed()

    def _flush(self, least_pages: int) -> None:
        end_position, time_ms = self._end
        first = self.flushed_offset
        if end_position == first:
            return
        pages = end_position // PAGE_BYTES - first // PAGE_BYTES
        is_full = self.files.base_of(end_position) != self.files.base_of(first)
        if pages < least_pages and not is_full:
            return
        sync_files(self.files, first, end_position)
        self.flushed_offset = end_position
        self._flushed_file.record(end_position)
        checkpoint = self._store.checkpoint
        checkpoint.physic_msg_timestamp = max(checkpoint.physic_msg_timestamp, time_ms)

    def reserve_ahead(self) -> None:
        reserved = self.files.reserved_position
        step = min(self.config.reserve_step_bytes, self.files.segment_bytes)
        if reserved - self.max_offset < step // 2:
            try:
                self.files.reserve_ahead(reserved, step)
            except DiskFull:
                return  # the next put that does not fit reports it

    def park_files(self) -> int:
        """Files that are read only give their descriptors back; returns how many did. Any thread."""
        with self._lock:
            first = self.files.base_of(self.flushed_offset)
            return self.files.park(range(first, self.files.end_position, self.files.segment_bytes))

    def close(self) -> None:
        self._flushed_file.close()
        self.files.close()
