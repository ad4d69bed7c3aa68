"""PutTurn: requests that are put together, checked and stamped as one batch of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from quorumlog.broker.errors import MessageIllegal, UnknownTopic
from quorumlog.broker.message_log import PutRequest
from quorumlog.broker.messages.message import (
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    PutResult,
    PutStatus,
)
from quorumlog.broker.messages.record import BLANK_BYTES
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.errors import BadRequest, BodyTooLarge, LedgerError

QueueCheck = Callable[[QueueKey], bool]


class Run(NamedTuple):
    """Requests that lie one behind the other in one file."""

    first: int
    stop: int
    position: int
    blank_at: int
    """Where the file before it is closed with a blank; -1: it is not."""


class PutTurn:
    def __init__(
        self,
        requests: Sequence[PutRequest],
        file_bytes: int,
        takes: QueueCheck,
        *,
        kept_property_bytes: int = 0,
    ) -> None:
        """Requests that are refused are answered here; the others are `requests`.
        `kept_property_bytes`: messages leave so much room in their properties for what a retry adds."""
        self._file_bytes = file_bytes
        self._takes = takes
        self._kept_property_bytes = kept_property_bytes
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
        else:
            buffer = bytearray().join([request.records.buffer for request in requests])
            sizes = np.concatenate([request.records.sizes for request in requests])
            self.records = RecordBatch.contiguous(buffer, sizes)
        self.row_ends = np.cumsum(self.counts)
        self.row_starts = self.row_ends - self.counts
        self.ends: Int64Array = np.cumsum(self.records.sizes)[self.row_ends - 1]
        """Bytes up to and with each request."""

    def _refusals(self) -> dict[int, LedgerError]:
        records, refused = self.records, dict[int, LedgerError]()
        columns = records.columns
        good = columns.good
        if not good.all():
            for number in self._requests_of(~good):
                refused[number] = MessageIllegal("a record of the batch has not the shape of one")
            return refused
        crcs = records.bodies_good()
        if not crcs.all():
            for number in self._requests_of(~crcs):
                refused[number] = MessageIllegal("the CRC of a body does not match")
        large = columns.body_sizes > MAX_BODY_BYTES
        if large.any():
            for number in self._requests_of(large):
                refused[number] = BodyTooLarge(
                    f"a body is above the limit of {MAX_BODY_BYTES} bytes; split it"
                )
        if self._kept_property_bytes:
            refused = self._without_room() | refused
        prepared = ~records.in_queue
        if prepared.any():
            for number in self._requests_of(prepared):
                refused[number] = MessageIllegal("transaction messages are not taken")
        sizes = np.diff(self.ends, prepend=0)
        for number in np.flatnonzero(sizes + BLANK_BYTES > self._file_bytes).tolist():
            refused[number] = BodyTooLarge(
                f"a batch of {sizes[number]} bytes does not fit into a file of {self._file_bytes} bytes;"
                " send it in parts"
            )
        queues = records.queues
        of_row = np.empty(len(records), np.int64)
        for number, (queue, rows) in enumerate(queues):
            of_row[rows] = number
            if not self._takes(queue):
                mask = np.zeros(len(records), bool)
                mask[rows] = True
                for request in self._requests_of(mask):
                    refused[request] = UnknownTopic(
                        f"there is no topic {queue.topic} with a queue {queue.queue_id}; quorumlog"
                        " broker status shows those that there are"
                    )
        if len(queues) > 1:
            low = np.minimum.reduceat(of_row, self.row_starts)
            mixed = low != np.maximum.reduceat(of_row, self.row_starts)
            for number in np.flatnonzero(mixed).tolist():
                refused[number] = MessageIllegal("a batch is for one queue of one topic")
        return refused

    def _without_room(self) -> dict[int, LedgerError]:
        """Requests with a message that has no room for a retry."""
        columns, kept = self.records.columns, self._kept_property_bytes
        limits = MAX_PROPERTIES_BYTES - np.where(columns.reconsume_times == 0, kept, 0)
        rows = np.flatnonzero(columns.property_sizes > limits)
        numbers = np.searchsorted(self.row_ends, rows, side="right").tolist()
        refused = dict[int, LedgerError]()
        for row, number in zip(rows.tolist(), numbers, strict=True):
            if number not in refused:
                refused[number] = BadRequest(
                    f"properties of {columns.property_sizes[row]} bytes are above the limit of"
                    f" {limits[row]}: {kept} of {MAX_PROPERTIES_BYTES} are kept for what a retry adds;"
                    " put them into the body"
                )
        return refused

    def _requests_of(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
        at = np.flatnonzero(rows)
        numbers: list[int] = np.unique(np.searchsorted(self.row_ends, at, side="right")).tolist()
        return numbers

    # ---------------------------------------------------------------- with the log's lock held

    def place(self, position: int) -> list[Run]:
        """A batch moves whole to the next file if it does not fit with a blank behind it."""
        runs: list[Run] = []
        first, count = 0, len(self.requests)
        done_bytes = 0
        blank_at = -1
        while first < count:
            left = self._file_bytes - position % self._file_bytes - BLANK_BYTES
            stop = int(np.searchsorted(self.ends, done_bytes + left, side="right"))
            if stop > first:
                runs.append(Run(first, stop, position, blank_at))
                position += int(self.ends[stop - 1]) - done_bytes
                done_bytes = int(self.ends[stop - 1])
                first, blank_at = stop, -1
            else:
                assert blank_at < 0, (position, self._file_bytes)
                blank_at = position
                position += self._file_bytes - position % self._file_bytes
        return runs

    def stamp(
        self, runs: list[Run], next_offsets: dict[QueueKey, int], time_ms: int, host: bytes
    ) -> None:
        """Queue offsets are given out here."""
        records = self.records
        offsets = np.empty(len(records), np.int64)
        for queue, rows in records.queues:
            first = next_offsets.get(queue, 0)
            next_offsets[queue] = first + len(rows)
            if len(rows) == len(records):
                offsets = np.arange(first, first + len(rows))
            else:
                offsets[rows] = np.arange(first, first + len(rows))
        if len(runs) == 1:
            positions = records.starts + runs[0].position
        else:
            positions = np.empty(len(records), np.int64)
            for run in runs:
                of_run = self.rows_of(run)
                positions[of_run] = records.starts[of_run] - self.bytes_of(run)[0] + run.position
        records.stamp(offsets, positions, time_ms, host)
        self._offsets, self._positions, self._time_ms = offsets, positions, time_ms

    def rows_of(self, run: Run) -> slice:
        return slice(int(self.row_starts[run.first]), int(self.row_ends[run.stop - 1]))

    def bytes_of(self, run: Run) -> tuple[int, int]:
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
                request.done(PutResult(status, first, position, count, self._time_ms))

    @property
    def waits(self) -> bool:
        return any(request.waits for request in self.requests)
