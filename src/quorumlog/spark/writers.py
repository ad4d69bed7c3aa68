"""Spark's writers: tasks stage their rows, the driver commits.

A writer is made next to the driver, pickled, and run by every attempt of every task; for the commit of a
streaming query another one is made, which knows the tasks only by their messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quorumlog.batch import EntryBatch
from quorumlog.config import staging_name
from quorumlog.errors import ConfigError, UnknownGroup
from quorumlog.spark.messages.message_bodies import MESSAGE_MACHINE, MessageBodies, topics_of
from quorumlog.spark.row_bodies import RowBodies, SinkOptions
from quorumlog.spark.short_errors import in_short
from quorumlog.spark.sources.server_source import shared_client
from quorumlog.staging import Batch, RowDigest, RowRange, SinkCommits, open_sink_logs, stage
from quorumlog.staging.client_logs import SinkLogs, no_staging
from quorumlog.staging.manifests import check_query

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Of a task of a streaming query. Spark's own, and not documented."""


@dataclass
class StagedPart(WriterCommitMessage):
    """The entries staged by one task."""

    partition_id: int
    query_id: str
    rows: int
    digest: RowDigest
    ranges: tuple[RowRange, ...]
    servers: tuple[str, ...] = ()
    """Members that it knew: the list that the driver was given may be out of date."""


def logs_of(options: SinkOptions, known: Sequence[str] = ()) -> AbstractContextManager[SinkLogs]:
    """`known`: where members are besides the option's servers."""
    return open_sink_logs(
        options.servers, options.group, options.timeout_ms, known, options.tls, options.as_user
    )


def staged(
    options: SinkOptions,
    servers: Sequence[str],
    bodies: RowBodies | MessageBodies,
    query_id: str,
    rows: Iterator[pa.RecordBatch],
) -> StagedPart:
    """Stage the rows of a task."""
    digest, count = RowDigest(), 0

    def batches() -> Iterator[EntryBatch]:
        nonlocal digest, count
        for each in rows:
            for packed in bodies.pack(each):
                digest, count = digest.plus(packed.digest), count + packed.rows
                yield packed.batch

    client = shared_client(
        options.servers, staging_name(options.group), options.tls, options.as_user
    ).client
    client.add_servers(servers)
    try:
        ranges = stage(client, batches(), options.timeout_ms)
    except UnknownGroup as error:
        raise no_staging(options.group, error) from None
    known = tuple(dict.fromkeys((*client.known_servers, *servers)))
    return StagedPart(_task().partitionId(), query_id, count, digest, ranges, known)


def committed(
    options: SinkOptions,
    producer: str,
    batch_id: int,
    messages: Sequence[WriterCommitMessage | None],
    *,
    forgets: bool = False,
) -> None:
    """Commit in the driver. `forgets`: this producer will not be used again."""
    parts = sorted(
        (each for each in messages if isinstance(each, StagedPart)), key=lambda part: part.partition_id
    )
    assert len(parts) == len(messages), f"{len(messages)} messages, {len(parts)} of them of tasks"
    digest = RowDigest()
    for part in parts:
        digest = digest.plus(part.digest)
    batch = Batch(
        query_id=parts[0].query_id if parts else "",
        batch_id=batch_id,
        rows=sum(part.rows for part in parts),
        digest=digest,
        ranges=tuple(each for part in parts for each in part.ranges),
        machine=MESSAGE_MACHINE if options.writes_messages else "",
    )
    known = dict.fromkeys(address for part in parts for address in part.servers)
    with logs_of(options, list(known)) as logs:
        commits = SinkCommits(logs, producer)
        commits.commit(batch, options.rules)
        if forgets:
            commits.forget()


class LedgerWriter:
    """Made next to the driver."""

    def begin(
        self, options: SinkOptions, schema: StructType, producer: str, *, overwrite: bool
    ) -> Batch | None:
        """Take the hold of this producer, before the first task; returns its newest committed batch.
        Raises ConfigError, SinkRefused, or the groups' errors."""
        if overwrite:
            raise ConfigError(
                "a log is appended to, and not overwritten: write with mode('append'), or output mode"
                " append"
            )
        self._options = options
        self._producer = producer
        self._bodies = (
            MessageBodies(schema, options, topics_of(options))
            if options.writes_messages
            else RowBodies(schema, options)
        )
        with logs_of(options) as logs:
            newest = SinkCommits(logs, producer).begin()
            self.servers = logs.servers
            """Where members were when it began: tasks look there, too."""
        return newest


class LedgerBatchWriter(LedgerWriter, DataSourceArrowWriter):
    @in_short
    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Once a write. Raises ConfigError, SinkRefused, or the groups' errors."""
        options.check_for_batch()
        self._forgets = not options.producer_id
        producer = options.producer_id or f"write-{uuid.uuid4().hex}"
        newest = self.begin(options, schema, producer, overwrite=overwrite)
        check_query(newest, "", options.rules, producer)

    @in_short
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        return staged(self._options, self.servers, self._bodies, "", iterator)

    @in_short
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        batch_id = max(self._options.batch_id, 0)
        committed(self._options, self._producer, batch_id, messages, forgets=self._forgets)

    @in_short
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Retention deletes the staged entries. The commit may have completed nevertheless."""
        if self._forgets:
            with logs_of(self._options, self.servers) as logs:
                SinkCommits(logs, self._producer).abandon()


class LedgerStreamWriter(LedgerWriter, DataSourceStreamArrowWriter):
    @in_short
    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """For the tasks of each micro-batch and for its commit; raises as above."""
        options.check_for_stream()
        self._newest = self.begin(options, schema, options.producer_id, overwrite=overwrite)

    @in_short
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        query_id = _task().getLocalProperty(QUERY_ID_PROPERTY)
        if not query_id:
            raise ConfigError(
                f"this Spark does not give a task its query ({QUERY_ID_PROPERTY}): use foreachBatch,"
                " with options producerId and batchId"
            )
        check_query(self._newest, query_id, self._options.rules, self._producer)
        return staged(self._options, self.servers, self._bodies, query_id, iterator)

    @in_short
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        committed(self._options, self._producer, batchId, messages)

    @in_short
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See `LedgerBatchWriter.abort`."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "only within a task"
    return task
