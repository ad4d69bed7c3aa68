"""archive: what is committed, into Parquet, and what is new of it the next time.

    same log?  the entry behind the archive's last one continues its chain
    hold       a named reader keeps what is not archived
    parts      read and checked here, encoded by a thread beside, synced, renamed, named in the manifest
    table      where the target is one, it gets the parts that it lacks, in one commit
    seen       every member that answers holds the entry at the archive's end, with the same chain
    move       only now the hold moves on, and says that chain: each member compares it with its own
               before it deletes what lies below

Stopped anywhere, it goes on with the next call, and what was written without being named is removed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec

from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.client.readers.reader_rows import refuse_consumer
from quorumlog.config import MIB
from quorumlog.errors import ConfigError, IndexOutOfRange, LedgerError, ProtocolViolation
from quorumlog.pipelines.archive import Archive, load_manifest
from quorumlog.pipelines.archive_parts import PartWriter
from quorumlog.pipelines.places import (
    OpenLog,
    Place,
    ServedLog,
    chain_at_end,
    chain_before,
    linked,
    open_log,
)
from quorumlog.pipelines.tables.target import ArchiveTable, checked_path, table_at

Progress = Callable[[int, int], None]
PART_BYTES = 128 * MIB


def no_progress(done: int, in_all: int) -> None:
    """Nobody looks."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    archive: str
    group: str
    first_index: int
    last_index: int
    """Of all that is archived; below `first_index`: nothing is."""
    last_chain: int
    new_entries: int
    new_bytes: int
    parts: int
    """In all."""
    members_compared: tuple[str, ...]
    hold: str
    table: str = ""
    """`delta:DIR` or `iceberg:TABLE`, which has all of it too."""


def archive(
    source: Place,
    target: str,
    *,
    first_index: int | None = None,
    stop_index: int | None = None,
    hold: str = "",
    part_bytes: int = PART_BYTES,
    report: Progress = no_progress,
) -> Archived:
    """Add to `target`, a directory, `delta:DIR` or `iceberg:TABLE`, what is committed and not in it yet.
    `first_index` counts for a new archive
    only (default: where the log begins); `stop_index`: not on from here.

    Raises ConfigError (of another log, or of nothing), LedgerError, DirectoryDamaged, StoreFailure; what
    is archived by then stays, and the next call goes on behind it.
    """
    if hold and not source.servers:
        raise ConfigError("a hold is kept by running members; archive from servers, or without one")
    with closing(open_log(source)) as log:
        table = table_at(target)
        directory = checked_path(target) if table is None else table.directory
        if table is not None and load_manifest(directory) is None:
            table.check()
        into = Archive.open_to_add(directory, log.group, log.cluster_id)
        with closing(into):
            return _archive_into(into, log, table, first_index, stop_index, hold, part_bytes, report)


def _archive_into(
    into: Archive,
    log: OpenLog,
    table: ArchiveTable | None,
    first_index: int | None,
    stop_index: int | None,
    hold: str,
    part_bytes: int,
    report: Progress,
) -> Archived:
    parts = into.manifest.parts
    first = parts[-1].stop_index if parts else _where_to_begin(log, first_index)
    stop = log.stop_index if stop_index is None else min(stop_index, log.stop_index)
    chain = parts[-1].last_chain if parts else chain_before(log, first)
    _refuse_another_log(into, log)
    if hold:
        client = _held(log).client
        refuse_consumer(client.readers(), hold, "an archive")
        client.reader(hold, hold="archive", first_index=first)
    if parts and log.begin_index > first:
        raise IndexOutOfRange(
            f"the log begins at {log.begin_index} by now, and {into.path} ends at {first - 1}: what lay"
            " between was deleted before it was archived. The archive stays as it is; begin another, and"
            " give a hold, so that the log keeps what is not archived",
            ledger_begin_index=log.begin_index,
            committed_index=log.stop_index - 1,
        )
    before_bytes = sum(part.bytes for part in parts)
    if first < stop:
        time_ms = (
            parts[-1].time_ms if parts else (log.time_ms_at(first - 1) if _has(log, first - 1) else -1)
        )
        batches = linked(log.batches(first, stop), first, stop, chain, "the log")
        _write_parts(into, batches, time_ms, part_bytes, lambda done: report(done - first, stop - first))
    if table is not None and into.manifest.parts:
        table.add(into.manifest.parts, f"{into.cluster_id}/{into.group}")
    compared = _compared(into, log)
    if hold and into.manifest.parts:
        reader = _held(log).client.reader(hold, hold="archive", first_index=first)
        if reader.position <= into.stop_index:
            reader.commit(into.stop_index, last_chain=into.manifest.parts[-1].last_chain)
    return Archived(
        archive=into.path,
        group=into.group,
        first_index=into.begin_index,
        last_index=into.stop_index - 1,
        last_chain=into.manifest.parts[-1].last_chain if into.manifest.parts else 0,
        new_entries=max(into.stop_index - first, 0) if into.manifest.parts else 0,
        new_bytes=sum(part.bytes for part in into.manifest.parts) - before_bytes,
        parts=len(into.manifest.parts),
        members_compared=compared,
        hold=hold,
        table="" if table is None else table.name,
    )


def _has(log: OpenLog, index: int) -> bool:
    return log.begin_index <= index < log.stop_index


def _where_to_begin(log: OpenLog, first_index: int | None) -> int:
    if first_index is not None and not log.begin_index <= first_index <= log.stop_index:
        raise IndexOutOfRange(
            f"the log holds entries {log.begin_index} .. {log.stop_index - 1}, so no archive of it can"
            f" begin at {first_index}",
            ledger_begin_index=log.begin_index,
            committed_index=log.stop_index - 1,
        )
    return log.begin_index if first_index is None else first_index


def _held(log: OpenLog) -> ServedLog:
    assert isinstance(log, ServedLog), "a hold is of running members"
    return log


def _refuse_another_log(into: Archive, log: OpenLog) -> None:
    """The last entry that both have is the same. Raises ConfigError."""
    index = min(into.stop_index, log.stop_index) - 1
    if not into.manifest.parts or not (_has(log, index) and index >= into.begin_index):
        return
    if index == into.stop_index - 1:
        ours = into.manifest.parts[-1].last_chain
    else:
        ours = chain_at_end(next(iter(into.batches(index, index + 1))))
    if chain_at_end(next(iter(log.batches(index, index + 1)))) != ours:
        raise ConfigError(
            f"{into.path} is the archive of another log: entry {index} is another one there. It stays as"
            " it is; name another directory for this one"
        )


def _write_parts(
    into: Archive,
    batches: Iterator[EntryBatch],
    time_ms: int,
    part_bytes: int,
    done: Callable[[int], None],
) -> None:
    """Reading and checking here, encoding and compressing in a thread: both let go of the interpreter
    most of the time."""
    ahead: queue.Queue[EntryBatch | None] = queue.Queue(4)
    failure: list[BaseException] = []

    times = AppendTimes(time_ms)

    def write() -> None:
        writer: PartWriter | None = None
        try:
            while (batch := ahead.get()) is not None:
                writer = writer or PartWriter(into.path, batch.first_index)
                writer.add(batch, times)
                if writer.bytes >= part_bytes:
                    into.add(writer.finish())
                    done(into.stop_index)
                    writer = None
            if writer is not None and writer.row_count:
                into.add(writer.finish())
                done(into.stop_index)
            elif writer is not None:
                # Only control entries, one of which may be the hold that this archive has moved: they go
                # with the next data, or each run would find something new.
                writer.abandon()
        except BaseException as error:  # raised again by who reads
            failure.append(error)
            if writer is not None:
                writer.abandon()
            while ahead.get() is not None:
                pass

    thread = threading.Thread(target=write, name="quorumlog-archive")
    thread.start()
    try:
        for batch in batches:
            ahead.put(batch)
            if failure:
                break
    finally:
        ahead.put(None)
        thread.join()
    if failure:
        raise failure[0]


def _compared(into: Archive, log: OpenLog) -> tuple[str, ...]:
    """The members that hold the archive's last entry, and with its chain. Raises ConfigError if one
    holds another."""
    if not isinstance(log, ServedLog) or not into.manifest.parts:
        return ()
    index, chain = into.stop_index - 1, into.manifest.parts[-1].last_chain
    same = []
    for row in log.client.status():
        if not row.reachable:
            continue
        try:
            batches = log.client.read_batches(index, index + 1, from_member=row.id)
            theirs = chain_at_end(next(iter(batches)))
        except (LedgerError, ProtocolViolation):
            continue  # it lags, or has lost it: it can delete nothing there before it has it again
        if theirs != chain:
            raise ConfigError(
                f"{into.path}: entry {index} is another one at {row.id}; quorumlog pipeline audit"
                f" --archive {into.path} says where they part. The hold was not moved"
            )
        same.append(row.id)
    return tuple(same)
