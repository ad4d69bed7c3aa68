"""Where the messages of a query come from: a directory's commit log by the piece, or a broker's queues
by offset."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pyspark.sql.datasource import InputPartition

from quorumlog.broker.client.blocking import BrokerClient, connect
from quorumlog.broker.client.broker_calls import QueueInfo
from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.offline.offline_ledger import OfflineLedger, holds_ledger
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import LogEnd, first_time_ms
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.spark.messages.message_options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    MessageOptions,
)

_logger = logging.getLogger(__name__)
_END = 1 << 62


@dataclass(frozen=True)
class MessagePartition(InputPartition):
    """Records from `first` to below `stop`: positions of a commit log, or offsets of a queue."""

    first: int
    stop: int
    topic: str = ""
    queue_id: int = 0


@dataclass(frozen=True)
class SmallQueues(InputPartition):
    """Ranges of several queues that are read by one task: a task costs more than a few messages."""

    parts: tuple[MessagePartition, ...]


def pieces(
    first: int, stop: int, most: int, topic: str = "", queue_id: int = 0
) -> list[MessagePartition]:
    """Of at most so many records each."""
    return [
        MessagePartition(at, min(at + most, stop), topic, queue_id) for at in range(first, stop, most)
    ]


class MessageSource(ABC):
    def __init__(self, options: MessageOptions) -> None:
        self._options = options

    @abstractmethod
    def partitions(self) -> list[MessagePartition]:
        """Raises ConfigError, and the source's errors."""

    @abstractmethod
    def read(self, partition: MessagePartition) -> Iterator[RecordBatch]:
        """The same; no batch is empty."""


def source_of(options: MessageOptions) -> MessageSource:
    if not options.path:
        return BrokerSource(options)
    if holds_ledger(options.path):
        return LedgerDirectorySource(options)
    return StoreDirectorySource(options)


def _wanted(options: MessageOptions, records: RecordBatch) -> RecordBatch:
    keep = records.in_queue
    if options.topics or options.topic_pattern:
        of_topic = np.zeros(len(records), bool)
        for key, rows in records.queues:
            if options.wants(key.topic):
                of_topic[rows] = True
        keep = keep & of_topic
    starts, stops = options.starting_offsets, options.ending_offsets
    if starts != EARLIEST or stops != LATEST:
        offsets = records.columns.queue_offsets
        in_range = np.zeros(len(records), bool)
        for key, rows in records.queues:
            own = offsets[rows]
            in_range[rows] = (own >= _offset(starts.of(key))) & (own < _offset(stops.of(key)))
        keep = keep & in_range
    times = records.columns.store_times_ms
    keep = keep & (times >= options.begin_ms) & (times <= options.end_ms)
    return records if keep.all() else records.select(np.flatnonzero(keep))


def _offset(offset: int) -> int:
    """Of a log that is read as it lies: what is after its end is not there."""
    return {EARLIEST_OFFSET: 0, LATEST_OFFSET: _END}.get(offset, offset)


class StoreDirectorySource(MessageSource):
    """A file of the commit log is read only if it has messages of the topics, stored within the time."""

    def partitions(self) -> list[MessagePartition]:
        """Raises ConfigError where no stopped store is."""
        options = self._options
        found: list[MessagePartition] = []
        with OfflineStore(options.path) as store:
            positions = np.sort(
                np.concatenate(
                    [np.zeros(0, np.int64)]
                    + [
                        queue.units(queue.min_offset, queue.max_offset)["position"].astype(np.int64)
                        for key, queue in store.queues.items()
                        if options.wants(key.topic)
                    ]
                )
            )
            bases = store.files.bases
            times = [first_time_ms(store.files, base) for base in bases]
            # What queues do not know after a kill is in the log all the same.
            indexed = store.files.end_position if store.is_clean else store.queues.last_position
            for number, base in enumerate(bases):
                if times[number] < 0:
                    break  # nothing was written there yet
                stop = base + store.file_bytes
                is_last = number + 1 == len(bases) or times[number + 1] < 0
                ends_before = not is_last and times[number + 1] < options.begin_ms
                if ends_before or times[number] > options.end_ms:
                    continue
                own = positions[np.searchsorted(positions, base) : np.searchsorted(positions, stop)]
                if not len(own) and stop <= indexed:
                    continue
                first = base if stop > indexed or not len(own) else int(own[0])
                cuts = [first]
                for position in own.tolist() if stop - first > options.partition_bytes else []:
                    if position - cuts[-1] >= options.partition_bytes:
                        cuts.append(position)
                found += [MessagePartition(a, b) for a, b in zip(cuts, [*cuts[1:], stop], strict=True)]
        return found

    def read(self, partition: MessagePartition) -> Iterator[RecordBatch]:
        """Raises DirectoryDamaged at a record that is not as it was written."""
        with OfflineStore(self._options.path) as store:
            end = LogEnd(partition.first)
            for found in store.walk(end, partition.first):
                starts = found.records.starts + found.position
                count = int(np.searchsorted(starts, partition.stop))
                if count:
                    records = found.records.select(np.arange(count))
                    wanted = _wanted(self._options, records)
                    if len(wanted):
                        yield wanted
                if count < len(starts) or found.next_position >= partition.stop:
                    return
            if end.problem and end.position < (store.flushed_offset() or 0):
                raise DirectoryDamaged(
                    f"the record at {end.position} of {store.root} {end.problem};"
                    f" run: quorumlog broker verify {store.root}",
                    path=store.files.path_of(end.position),
                    position=end.position,
                )


class LedgerDirectorySource(MessageSource):
    """A member's directory, or a Java broker's in DLedger mode: committed entries by their index."""

    def partitions(self) -> list[MessagePartition]:
        with OfflineLedger(self._options.path) as ledger:
            return pieces(ledger.first_index, ledger.stop_index, self._options.partition_records)

    def read(self, partition: MessagePartition) -> Iterator[RecordBatch]:
        with OfflineLedger(self._options.path) as ledger:
            for records in ledger.batches(partition.first, partition.stop):
                wanted = _wanted(self._options, records)
                if len(wanted):
                    yield wanted


class BrokerSource(MessageSource):
    def connect(self) -> BrokerClient:
        options = self._options
        return connect(
            options.servers, timeout_ms=options.timeout_ms, tls=options.tls, user=options.as_user
        )

    def partitions(self) -> list[MessagePartition]:
        """Raises ConfigError, QueueOffsetOutOfRange, or the broker's refusal."""
        options = self._options
        found = []
        with self.connect() as broker:
            queues = broker.queues()
            known = {QueueKey(queue.topic, queue.queue_id) for queue in queues}
            for offsets in (options.starting_offsets, options.ending_offsets):
                for key in offsets.by_queue:
                    if key not in known:
                        raise ConfigError(f"topic {key.topic} has no queue {key.queue_id}")
            for queue in queues:
                if not options.wants(queue.topic):
                    continue
                first, stop = self.range_of(queue)
                if options.begin_ms and first < stop:
                    first = broker.offset_at(queue.topic, queue.queue_id, options.begin_ms)
                if options.end_ms < 2**62 and first < stop:
                    after = options.end_ms + 1
                    stop = min(stop, broker.offset_at(queue.topic, queue.queue_id, after))
                found += pieces(first, stop, options.partition_records, queue.topic, queue.queue_id)
        return found

    def range_of(self, queue: QueueInfo) -> tuple[int, int]:
        """Raises QueueOffsetOutOfRange."""
        low, high = queue.min_offset, queue.max_offset
        key = QueueKey(queue.topic, queue.queue_id)
        what = f"queue {queue.queue_id} of topic {queue.topic}"
        ends = []
        for name, stated in (
            ("startingOffsets", self._options.starting_offsets.of(key)),
            ("endingOffsets", self._options.ending_offsets.of(key)),
        ):
            offset = {EARLIEST_OFFSET: low, LATEST_OFFSET: high}.get(stated, stated)
            if offset > high:
                raise QueueOffsetOutOfRange(
                    f"option {name} is {offset}, and {what} ends at {high}; use latest",
                    min_offset=low,
                    max_offset=high,
                )
            ends.append(offset)
        first, stop = ends
        if first < min(low, stop):
            self.lost(what, first, min(low, stop), low, high)
            first = min(low, stop)
        return first, stop

    def lost(self, what: str, first: int, next_offset: int, low: int, high: int) -> None:
        """Raises QueueOffsetOutOfRange unless the query continues without them."""
        gap = (
            f"messages {first} to {next_offset - 1} of {what} are gone ({next_offset - first}): it"
            f" begins at {low}"
        )
        if self._options.fail_on_data_loss:
            raise QueueOffsetOutOfRange(
                f"{gap}. Begin there, or set failOnDataLoss=false to leave them out",
                min_offset=low,
                max_offset=high,
            )
        _logger.warning("%s; failOnDataLoss=false, continuing without them", gap)

    def read(self, partition: MessagePartition) -> Iterator[RecordBatch]:
        """Raises QueueOffsetOutOfRange, or the broker's refusal."""
        what = f"queue {partition.queue_id} of topic {partition.topic}"
        with self.connect() as broker:
            at = partition.first
            while at < partition.stop:
                try:
                    pulled = broker.pull(
                        partition.topic,
                        partition.queue_id,
                        at,
                        most_messages=min(partition.stop - at, 8192),
                        most_bytes=2 << 20,
                    )
                except QueueOffsetOutOfRange as error:
                    if not at < error.min_offset:
                        raise
                    # Retention has taken them since the query was planned.
                    next_offset = min(error.min_offset, partition.stop)
                    self.lost(what, at, next_offset, error.min_offset, error.max_offset)
                    at = next_offset
                    continue
                if pulled.next_offset <= at:
                    raise QueueOffsetOutOfRange(
                        f"{what} ends at offset {at} at this broker, and the plan goes to"
                        f" {partition.stop}: if the broker is a slave that lags, read again later",
                        min_offset=pulled.min_offset,
                        max_offset=pulled.max_offset,
                    )
                wanted = _wanted(self._options, pulled.records)
                if len(wanted):
                    yield wanted
                at = pulled.next_offset
