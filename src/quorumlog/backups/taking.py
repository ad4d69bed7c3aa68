"""Taking a backup: the committed entries of a running log, byte for byte as its members have them.

    cut        the last committed entry, confirmed by a majority; or, of a named member, as it knows it
    same log?  the last entry that the backup holds is asked for: chains that agree there agree below
    copy       the entries between, from one member; from the next one if it fails
    verify     written entries are read back; the entry at the cut is requested again
    complete   the directory is a backup up to the cut; the log need not keep these entries for it

A follower gives the entries where one can: reading them costs the leader nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from quorumlog.backups.folding import state_at_end
from quorumlog.client import LedgerClient, MemberStatusRow, connect
from quorumlog.client.async_client import DEFAULT_TIMEOUT_MS
from quorumlog.client.reader_operations import refuse_consumer
from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    LedgerError,
    RangeDamaged,
    Refused,
    Unreachable,
)
from quorumlog.log_state.control_entries import READER_NAME, READER_NAMES
from quorumlog.log_state.log_state import LogState
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.made_directories import BackupDirectory
from quorumlog.store.member_directory import CopiedLog
from quorumlog.version import VERSION
from quorumlog.wire.client_messages import LayoutResponse

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all)."""

BATCH_BYTES = 2 * MIB
ASK_AGAIN_S = 0.05
"""Between two questions whether a member knows of a committed entry by now."""


class BackupTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that is complete: entries `first_index` .. `last_index`."""

    directory: str
    group: str
    cluster_id: str
    member_id: str
    """That gave the entries, the last of several; "" if there was nothing to copy."""
    first_index: int
    last_index: int
    last_term: int
    last_chain: int
    new_entries: int
    new_bytes: int
    time_ms: int | None
    """The last time mark in it, milliseconds since 1970; None if the log has none."""
    taken_ms: int


def backup(
    servers: str | Sequence[str],
    directory: str | os.PathLike[str],
    *,
    group: str = DEFAULT_GROUP,
    from_member: str | None = None,
    hold: str | None = None,
    verify: str = "all",
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> BackupTaken:
    """Copy a log into `directory`, or the new entries since the last time, while the cluster works.

    Everything acknowledged before the call is included. `from_member`: ask only this member; needs no
    leader, and the newest entries may be missing. `hold`: name of a reader that the cluster keeps for
    this backup: no entry is deleted before the backup has it. `verify`: "all" reads back the whole
    directory, "new" only the entries added by this run.

    Raises ConfigError (the directory holds something else, or the backup of another log), LedgerError,
    DirectoryDamaged, StoreFailure; an existing backup stays as it was, and the next call continues
    where this one ended."""
    with (
        connect(servers, group=group, timeout_ms=timeout_ms) as log,
        BackupTaking(
            log, os.fspath(directory), from_member=from_member, hold=hold, verify=verify
        ) as taking,
    ):
        taking.prepare()
        taking.copy()
        taking.verify()
        return taking.complete()


class BackupTaking:
    """The steps of one backup, in this order: `prepare`, `copy`, `verify`, `complete`."""

    def __init__(
        self,
        log: LedgerClient,
        directory: str,
        *,
        from_member: str | None = None,
        hold: str | None = None,
        verify: str = "all",
        disk: Disk | None = None,
    ) -> None:
        """Raises ConfigError, DirectoryDamaged, StoreFailure."""
        if from_member is not None and hold is not None:
            raise ConfigError(
                "hold and from_member exclude each other: a hold is an entry, which the leader writes"
            )
        if hold is not None and not re.match(READER_NAME, hold):
            raise ConfigError(READER_NAMES.format(hold))
        if verify not in ("all", "new"):
            raise ConfigError(f"verify must be all or new, not {verify!r}")
        self._verifies_all = verify == "all"
        self._client = log
        self._from_member = from_member
        self._hold = hold
        self._disk = disk or OsDisk()
        self._target = BackupDirectory(self._disk, directory)
        self._cut_index = -1
        self._sources: list[MemberStatusRow] = []
        self._new_bytes = 0
        self._given_by = ""
        self._first_new = 0

    def __enter__(self) -> BackupTaking:
        return self

    def __exit__(self, *_: object) -> None:
        self._target.close()

    @property
    def next_index(self) -> int:
        """Index from which an interrupted backup continues."""
        return self._copied.end.index + 1 if self._target.log is not None else 0

    @property
    def _copied(self) -> CopiedLog:
        assert self._target.log is not None, "prepare comes first"
        return self._target.log

    # ---------------------------------------------------------------- whom to ask for what

    def prepare(self) -> None:
        """Choose the backup's end and the member to read, and check that its entries continue the
        backup."""
        if self._hold is not None:
            refuse_consumer(self._client.readers(), self._hold, "a backup")
        if self._from_member is None:
            self._cut_index = self._client.end_index()  # first: it waits until somebody leads
        self._sources = self._wait_for_sources()
        if self._from_member is not None:
            self._cut_index = self._sources[0].committed_index
        layout = self._layout()
        if layout.begin_index < 0 < layout.begin_position:
            raise ConfigError(
                f"the log of {layout.member_id} continues a classic store that was taken over, which a"
                " backup does not include: stop a member and copy its whole directory, or make a classic"
                " store of it with quorumlog broker convert"
            )
        if self._may_begin(layout):
            sizes = (layout.segment_bytes, layout.index_segment_bytes)
            start = _start_of(layout)
            self._target.begin(self._client.group, layout.cluster_id, *sizes, start)
        else:
            self._refuse_another_log(layout)
        self._first_new = self.next_index
        if self._hold is not None:
            # One that is new holds from here on. What may be deleted by now cannot be held; it is copied
            # as long as it is there.
            with suppress(IndexOutOfRange):
                self._client.reader(self._hold, hold="archive", first_index=self._first_new)

    def _wait_for_sources(self) -> list[MemberStatusRow]:
        """Those that may have it, best first. A member that has just started knows of no committed
        entry, and who leads may change at any moment: both pass. Raises Refused."""
        deadline = time.monotonic() + self._client.timeout_ms / 1000
        while not (able := [row for row in self._rows() if row.committed_index >= 0]):
            if time.monotonic() >= deadline:
                raise Unreachable(
                    "no member that answers knows of a committed entry"
                    if self._from_member is None
                    else f"{self._from_member} knows of no committed entry; ask another member"
                )
            time.sleep(ASK_AGAIN_S)
        # One that has the next entry first, of these one that is whole, of these one that follows.
        next_index = self.next_index
        return sorted(
            able,
            key=lambda row: (
                max(row.ledger_begin_index, next_index),
                row.damaged_entries > 0,
                row.role == "leader",
            ),
        )

    def _rows(self) -> list[MemberStatusRow]:
        """Of the members that may be asked and answer."""
        rows = self._client.status()
        if self._from_member is None:
            return [row for row in rows if row.reachable]
        named = [row for row in rows if row.id == self._from_member]
        if not named:
            known = ", ".join(row.id for row in rows if row.id) or "none that answers"
            raise Refused(f"there is no member {self._from_member!r}; the group has {known}")
        if not named[0].reachable:
            raise Unreachable(f"{self._from_member} cannot be reached: {named[0].problem}")
        return named

    def _layout(self) -> LayoutResponse:
        failures = []
        for row in self._sources:
            try:
                return self._client.layout(row.id)
            except LedgerError as error:
                failures.append(f"{row.id}: {error}")
        raise Unreachable(f"no member reports where its log begins: {'; '.join(failures)}")

    # ---------------------------------------------------------------- the same log?

    def _may_begin(self, layout: LayoutResponse) -> bool:
        """There is nothing yet; or a backup that was never complete and never will be."""
        log = self._target.log
        if log is None or self._target.cut is not None:
            return log is None
        is_empty = log.end.index == log.store.begin.index
        return is_empty or (log.end.index < layout.begin_index and not self._identity_problem(layout))

    def _refuse_another_log(self, layout: LayoutResponse) -> None:
        """Whether the backup is of just this log."""
        problem = self._identity_problem(layout) or self._chain_problem(layout)
        if problem:
            raise ConfigError(
                f"{self._target.path} is the backup of another log: {problem}. It stays as it is; name"
                " another directory for this one"
            )
        if self._copied.end.index < layout.begin_index:
            raise self._gap(layout.begin_index + 1)

    def _identity_problem(self, layout: LayoutResponse) -> str:
        """It is of another cluster, or has other segments."""
        record = self._target.record
        assert record is not None, "nothing was begun"
        for name, theirs, ours in (
            ("group", self._client.group, record.group),
            ("cluster id", layout.cluster_id, record.cluster_id),
            ("segment_bytes", layout.segment_bytes, self._target.sizes[0]),
            ("index_segment_bytes", layout.index_segment_bytes, self._target.sizes[1]),
        ):
            if theirs != ours:
                return f"its {name} is {ours}, and that of {layout.member_id} {theirs}"
        return ""

    def _chain_problem(self, layout: LayoutResponse) -> str:
        """The last entry that both have is another one there."""
        store, end = self._copied.store, self._copied.end
        if end.index > self._cut_index and self._from_member is None:
            return f"it ends at entry {end.index}, and the log at entry {self._cut_index}"
        index = min(end.index, self._cut_index)  # a member that was named may lag
        if index < max(layout.begin_index, store.begin.index):
            return ""  # neither tells anything of it
        point = store.point_on_disk(index)
        if index == layout.begin_index:
            is_same = (point.term, point.chain) == (layout.begin_term, layout.begin_chain)
        else:
            is_same = self._is_held(point)
        return "" if is_same else f"entry {index} is another one there"

    def _is_held(self, point: LogPoint) -> bool:
        """By the leader; by another member where that has lost it. Or by the one that was named."""
        others = [row.id for row in self._sources] if self._from_member is None else []
        members = [self._from_member, *others]
        for member_id in members:
            try:
                batches = self._client.read_batches(point.index, point.index + 1, from_member=member_id)
                heads = [batch.first_header for batch in batches]
            except (IndexOutOfRange, RangeDamaged):
                if member_id == members[-1]:
                    raise
            else:
                held = [(head.index, head.term, head.chain_crc) for head in heads]
                return held == [(point.index, point.term, point.chain)]
        raise AssertionError("a member was asked")

    def _gap(self, begin_index: int) -> IndexOutOfRange:
        last = self._copied.end.index
        return IndexOutOfRange(
            f"the log begins at index {begin_index} by now, and {self._target.path} ends at {last}: the"
            " entries between were deleted before they were copied. The backup stays as it is; take a"
            " new one into another directory; with quorumlog backup --hold NAME the log keeps entries"
            " that are not copied yet",
            ledger_begin_index=begin_index,
            committed_index=self._cut_index,
        )

    # ---------------------------------------------------------------- copying

    def copy(self, report: Progress = lambda done, in_all: None) -> None:
        failures: list[tuple[str, LedgerError]] = []
        for row in self._sources:
            if self.next_index > self._cut_index:
                break
            try:
                self._copy_from(row.id, report)
            except DiskFull:
                raise  # no other member has more space here
            except LedgerError as error:
                failures.append((row.id, error))
        if self.next_index <= self._cut_index:
            begins = [e.ledger_begin_index for _, e in failures if isinstance(e, IndexOutOfRange)]
            if len(begins) == len(failures) and min(begins) > self.next_index:
                raise self._gap(min(begins))
            reasons = "; ".join(f"{member_id}: {error}" for member_id, error in failures)
            raise Unreachable(f"no member could send the entries from {self.next_index} on: {reasons}")

    def _copy_from(self, member_id: str, report: Progress) -> None:
        self._given_by = member_id
        stop_index = self._cut_index + 1
        for batch in self._client.read_batches(
            self.next_index, stop_index, from_member=member_id, batch_bytes=BATCH_BYTES
        ):
            self._copied.append(batch)
            self._new_bytes += batch.total_bytes
            report(self.next_index - self._first_new, stop_index - self._first_new)

    # ---------------------------------------------------------------- what was written

    def verify(self, report: Progress = lambda done, in_all: None) -> None:
        """Every entry is read back from the disk, those of earlier runs, too, unless only new ones were
        requested; and the last one is compared with the log's: its chain is the digest of all.

        Raises DirectoryDamaged, ConfigError."""
        log = self._copied
        log.sync()
        before = None if self._verifies_all else self._target.cut
        first_index = log.store.begin.index + 1 if before is None else before.index + 1
        stop_index = log.end.index + 1
        with DirectoryReader(self._disk, self._target.path) as reader:
            # What opening shows, also of entries that are not read again.
            lost = [each for each in reader.damage if 0 <= each.index < stop_index]
            if lost:
                raise reader.refusal(lost[0])
            try:
                for batch in reader.batches(first_index, stop_index):
                    report(batch.last_index + 1 - first_index, stop_index - first_index)
            except DirectoryDamaged as error:
                raise DirectoryDamaged(
                    f"{error}: the backup is damaged; take a new one into another directory",
                    path=error.path,
                    position=error.position,
                    index=error.index,
                ) from None
            if log.end.index >= first_index:
                header = reader.header_at(log.end.index)
                held = (header.term, header.chain_crc)
                assert held == (log.end.term, log.end.chain), (header, log.end)
        if log.end.index == self._cut_index and not self._is_held(log.end):
            raise ConfigError(
                f"{self._target.path}: entry {self._cut_index} is another one in the log, so this is the"
                " backup of another; it stays as it was"
            )

    def complete(self) -> BackupTaken:
        target, log = self._target, self._copied
        state = state_at_end(log.store)
        record = target.complete(
            record=state.encode() if isinstance(state, LogState) else b"",
            time_ms=state.time_ms if isinstance(state, LogState) else None,
            taken_ms=time.time_ns() // 1_000_000,
            release=VERSION,
        )
        assert record.cut is not None, record
        if self._hold is not None:
            reader = self._client.reader(self._hold, hold="archive", first_index=record.cut.index + 1)
            reader.commit(record.cut.index + 1)
        return BackupTaken(
            directory=target.path,
            group=record.group,
            cluster_id=record.cluster_id,
            member_id=self._given_by,
            first_index=log.store.begin.index + 1,
            last_index=record.cut.index,
            last_term=record.cut.term,
            last_chain=record.cut.chain,
            new_entries=log.end.index + 1 - self._first_new,
            new_bytes=self._new_bytes,
            time_ms=record.time_ms,
            taken_ms=record.taken_ms,
        )


def _start_of(layout: LayoutResponse) -> LogStart | None:
    if layout.begin_index < 0:
        return None
    point = LogPoint(layout.begin_index, layout.begin_term, layout.begin_chain, layout.begin_position)
    return LogStart(point, layout.begin_record)
