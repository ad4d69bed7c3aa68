"""archive: committed entries into Parquet, incrementally.

    whole?     every part that the manifest names is there in its length
    same log?  the entry after the archive's last one continues its chain
    hold       a named reader holds entries not archived yet
    plan       the new range, cut by even bytes of the log
    run        each cut is read, checked, encoded and synced, by an engine's threads or executors
    fold       the chain across all parts; one manifest; the files moved to their place
    table      where the target is one, it gets the parts that it lacks, in one commit
    seen       every member that answers holds the entry at the archive's end, with the same chain
    move       only now the hold moves on, with that chain: each member compares it with its own
               before it deletes entries below

Stopped anywhere, it continues with the next call, and files not named in the manifest are removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import msgspec

from quorumlog.append_times import AppendTimes
from quorumlog.client.reader_operations import refuse_consumer
from quorumlog.config import MIB
from quorumlog.errors import ConfigError, IndexOutOfRange, LedgerError, ProtocolViolation
from quorumlog.log_state.log_state import counted_ms
from quorumlog.pipelines.archive import ATTEMPTS, Archive, load_manifest
from quorumlog.pipelines.archive_folders import absolute, conflict, folder_at
from quorumlog.pipelines.archive_parts import Part, PartWriter, read_part
from quorumlog.pipelines.engine import LocalEngine, WorkEngine
from quorumlog.pipelines.places import (
    OpenLog,
    Place,
    ServedLog,
    broken,
    chain_at_end,
    chain_before,
    check_seen,
    even_cuts,
    linked,
    open_log,
    parts_of,
    range_in,
)
from quorumlog.pipelines.tables.target import ArchiveTable, archive_directory, table_at

Progress = Callable[[int, int], None]
PART_BYTES = 128 * MIB
WAVE_PARTS = 64
"""Written together, and then named in one manifest."""


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
    verify: bool = False,
    engine: WorkEngine | None = None,
    report: Progress = lambda done, in_all: None,
) -> Archived:
    """Add to `target`, a directory, `s3://BUCKET/PREFIX`, `delta:DIR` or `iceberg:TABLE`, the committed
    entries not in it yet.

    `first_index` applies to a new archive only (default: the log's begin); `stop_index`: exclusive.
    `verify`: earlier parts are read back whole. `engine`: where parts are written (default: threads of
    this process).

    Raises ConfigError (of another log, or of nothing), LedgerError, DirectoryDamaged, StoreFailure;
    entries archived by then stay, and the next call continues after them.
    """
    if hold and not source.servers:
        raise ConfigError("a hold is kept by running members; archive from servers, or without one")
    with closing(open_log(source)) as log:
        table = table_at(target)
        directory = archive_directory(target) if table is None else table.directory
        if table is not None and load_manifest(folder_at(directory))[0] is None:
            table.check()
        into = Archive.open_to_add(directory, log.group, log.cluster_id)
        with closing(into):
            run = _Run(into, log, source, part_bytes, engine or LocalEngine(), report)
            if verify:
                run.read_back()
            return _archive_into(run, table, first_index, stop_index, hold)


class PartWork(msgspec.Struct, frozen=True):
    """One part of an archive that is to be written."""

    place: Place
    directory: str
    run: str
    """Of `Archive.run`: as long as it is there, the file is wanted."""
    first_index: int
    stop_index: int
    time_ms: int | None
    """The time before it, from the archive; None: read from the log."""


class Attempt(msgspec.Struct, frozen=True):
    part: Part
    file: str
    """In `directory` of its work."""


class VerifyWork(msgspec.Struct, frozen=True):
    paths: tuple[str, ...]
    part: Part


class Verified(msgspec.Struct, frozen=True):
    entries: int


def write_part(work: PartWork) -> Attempt:
    """A work: under a name of its own."""
    first, stop = work.first_index, work.stop_index
    check_seen(os.path.join(work.directory, work.run))
    _check_wanted(work)
    with closing(open_log(work.place)) as log:
        time_ms = work.time_ms
        if time_ms is None:
            time_ms = log.time_ms_at(first - 1)
        resets = log.clock_resets()
        times = AppendTimes(counted_ms(first - 1, time_ms, resets), resets)
        writer = PartWriter(work.directory, work.run, first)
        try:
            for batch in linked(log.batches(first, stop), first, stop, None, "the log"):
                writer.add(batch, times)
            part = writer.finish()
            _check_wanted(work)
            return Attempt(part, writer.name)
        except BaseException:
            writer.abandon()
            raise


def _check_wanted(work: PartWork) -> None:
    """Raises ConfigError if the run that this is a work of is over: its driver is gone, and another one
    has cleared up after it."""
    if not folder_at(work.directory).exists(work.run):
        raise conflict(os.path.dirname(work.directory))


def verify_part(work: VerifyWork) -> Verified:
    """A work: raises DirectoryDamaged unless the file has every entry, with its digests."""
    part, next_index = work.part, work.part.first_index
    for batch in read_part(work.paths, part, part.first_index, part.stop_index):
        next_index = batch.last_index + 1
    if next_index != part.stop_index:
        raise broken(work.paths[-1], next_index, "rows are missing")
    return Verified(part.stop_index - part.first_index)


@dataclass
class _Run:
    into: Archive
    log: OpenLog
    source: Place
    part_bytes: int
    engine: WorkEngine
    report: Progress

    def read_back(self) -> None:
        """Raises DirectoryDamaged."""
        paths = ((tuple(map(absolute, self.into.paths_of(p))), p) for p in self.into.manifest.parts)
        for _ in self.engine.map(verify_part, [VerifyWork(*each) for each in paths]):
            pass

    def write(self, first: int, stop: int, chain: int | None, time_ms: int) -> None:
        """In waves, so that an interruption costs one of them at most."""
        with self.into.run() as run:
            self._write(run, first, stop, chain, time_ms)

    def _write(self, run: str, first: int, stop: int, chain: int | None, time_ms: int) -> None:
        directory = absolute(os.path.join(self.into.path, ATTEMPTS))
        edges = even_cuts(self.log, first, stop, self.part_bytes)
        works = [
            PartWork(source, directory, run, low, high, time_ms if low == first else None)
            for source, low, high in parts_of(self.source, edges)
        ]
        for at in range(0, len(works), WAVE_PARTS):
            done: list[Attempt] = []
            for attempt in self.engine.map(write_part, works[at : at + WAVE_PARTS]):
                part = attempt.part
                if chain is not None and part.chain_before != chain:
                    raise broken(
                        "the log", part.first_index, "chain_crc does not continue the entry before"
                    )
                chain = part.last_chain
                done.append(attempt)
                self.report(part.stop_index - first, stop - first)
            is_last = at + WAVE_PARTS >= len(works)
            while is_last and done and not done[-1].part.rows:
                # Only control entries, one of which may be the hold that this archive has moved: they go
                # with the next data, or each run would find something new.
                done.pop()
            self.into.add([(attempt.part, attempt.file) for attempt in done])


def _archive_into(
    run: _Run, table: ArchiveTable | None, first_index: int | None, stop_index: int | None, hold: str
) -> Archived:
    into, log = run.into, run.log
    parts = into.manifest.parts
    first = parts[-1].stop_index if parts else _where_to_begin(log, first_index)
    _, stop = range_in(log, first_index, stop_index)
    chain = parts[-1].last_chain if parts else chain_before(log, first)
    _refuse_another_log(into, log)
    if hold:
        assert isinstance(log, ServedLog), "a hold is of running members"
        refuse_consumer(log.client.readers(), hold, "an archive")
        log.client.reader(hold, hold="archive", first_index=first)
    if parts and log.begin_index > first:
        raise IndexOutOfRange(
            f"the log begins at {log.begin_index} by now, and {into.path} ends at {first - 1}: the"
            " entries between were deleted before they were archived. The archive stays as it is; begin"
            " another, with a hold, so that the log keeps entries that are not archived yet",
            ledger_begin_index=log.begin_index,
            committed_index=log.stop_index - 1,
        )
    before_bytes = sum(part.bytes for part in parts)
    if first < stop:
        time_ms = (
            parts[-1].time_ms if parts else (log.time_ms_at(first - 1) if _has(log, first - 1) else -1)
        )
        run.write(first, stop, chain, time_ms)
    if table is not None and into.manifest.parts:
        table.add(into.files(), f"{into.cluster_id}/{into.group}")
    compared = _compared(into, log)
    if isinstance(log, ServedLog) and hold and into.manifest.parts:
        reader = log.client.reader(hold, hold="archive", first_index=first)
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
                f" --archive {into.path} shows where they differ. The hold was not moved"
            )
        same.append(row.id)
    return tuple(same)
