"""Where a pipeline finds a log: running members, a stopped member's directory, an archive.

All three give the very entries that the members hold, headers and control entries included, so every
pipeline reads every place, and one place can be compared with another.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from quorumlog.append_times import milliseconds_of
from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient, connect, leader_of
from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    LedgerError,
    ProtocolViolation,
    Unreachable,
)
from quorumlog.log_state.log_state import Resets
from quorumlog.pipelines.archive_folders import absolute, is_object
from quorumlog.store.directory_reader import DirectoryReader, StoredMarks
from quorumlog.store.disk import OsDisk

BATCH_BYTES = 2 * MIB
T = TypeVar("T")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Names a log without opening it, so that it can be handed to another process. One of `servers`,
    `path` and `archive` is set."""

    servers: str = ""
    path: str = ""
    archive: str = ""
    group: str = ""
    """"" : `default` with servers; any with the others."""
    member_id: str = ""
    """With servers: only this member is asked."""
    timeout_ms: int = 30_000
    batch_bytes: int = BATCH_BYTES
    turn: int = 0
    """With servers: which of the followers is asked first. Works that run together have other ones."""

    @property
    def name(self) -> str:
        return self.member_id or self.path or self.archive or self.servers

    def checked(self) -> Place:
        """Raises ConfigError unless it names one place."""
        if sum(map(bool, (self.servers, self.path, self.archive))) != 1:
            raise ConfigError(
                "name one log: the addresses of its members (servers), the directory of a stopped one"
                " (path), or an archive"
            )
        return self


def connected(place: Place, producer_id: str | None = None) -> LedgerClient:
    """A client of the members that `place` names."""
    return connect(
        place.servers,
        group=place.group or DEFAULT_GROUP,
        timeout_ms=place.timeout_ms,
        producer_id=producer_id,
    )


class OpenLog(Protocol):
    """Entries of [begin_index, stop_index), all of them committed."""

    @property
    def group(self) -> str: ...

    @property
    def cluster_id(self) -> str:
        """Empty if unknown."""

    @property
    def begin_index(self) -> int: ...

    @property
    def stop_index(self) -> int: ...

    def batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """Digests are checked. Raises LedgerError, DirectoryDamaged, ProtocolViolation."""

    def time_ms_at(self, index: int) -> int:
        """When an entry counts as appended; -1: no mark at or before it."""

    def clock_resets(self) -> Resets:
        """Of the log's clock, as far as this copy of it goes."""

    def close(self) -> None: ...


def as_seen_anywhere(place: Place) -> Place:
    """The same log for a work, which may run in another process: its working directory is another one,
    and it knows no catalog of tables. Raises ConfigError."""
    if place.path:
        return msgspec.structs.replace(place, path=os.path.abspath(place.path))
    if place.archive:
        from quorumlog.pipelines.tables.target import archive_directory

        directory = absolute(archive_directory(place.archive))
        return msgspec.structs.replace(place, archive=directory)
    return place


def check_seen(path: str) -> None:
    """Checks the driver's file where a work writes. Raises ConfigError if this process does not see
    it."""
    if not is_object(path) and not os.path.exists(path):
        raise ConfigError(
            f"{path} is not there on {platform.node()}, and the driver has made it: the folder is not"
            " shared. Driver and executors have to see the same one at the same path"
        )


def open_log(place: Place) -> OpenLog:
    """Raises ConfigError, LedgerError, DirectoryDamaged, StoreFailure."""
    place = place.checked()
    if place.servers:
        return ServedLog(place)
    if place.path:
        return DirectoryLog(place)
    from quorumlog.pipelines.archive import Archive

    return Archive.open(place.archive, group=place.group)


class ServedLog:
    """Followers are read where one is up: that costs the leader nothing. One that fails is passed over,
    and the leader comes last."""

    def __init__(self, place: Place) -> None:
        self.group = place.group or DEFAULT_GROUP
        self._members: list[str | None] = [place.member_id]
        """In the order in which they are asked; None: the leader."""
        self._knowing = self._members
        """The same, of those that know all resets of the clock before `stop_index`: one that is not
        known makes times too young, and is no error."""
        self._batch_bytes = place.batch_bytes
        self.client = connected(place)
        try:
            self._look(place)
        except BaseException:
            self.client.close()
            raise

    def _look(self, place: Place) -> None:
        rows = [row for row in self.client.status() if row.reachable]
        if not place.member_id:
            self.stop_index = self.client.end_index() + 1
            leader = leader_of(rows)
            self.begin_index = max(leader.ledger_begin_index, 0) if leader is not None else 0
            followers = [
                row
                for row in rows
                if row.role == "follower"
                and row.damaged_entries == 0
                and max(row.ledger_begin_index, 0) <= self.begin_index
            ]
            at = place.turn % len(followers) if followers else 0
            in_turn = [*followers[at:], *followers[:at]]
            self._members = [*(row.id for row in in_turn), None]
            knowing = (row.id for row in in_turn if row.committed_index + 1 >= self.stop_index)
            self._knowing = [*knowing, None]
        else:
            row = next((row for row in rows if row.id == place.member_id), None)
            if row is None:
                raise Unreachable(f"{place.member_id} does not answer at {place.servers}")
            self.begin_index = max(row.ledger_begin_index, 0)
            self.stop_index = row.committed_index + 1
        self.cluster_id = self.client.layout(place.member_id or "any").cluster_id

    def batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        if first_index >= stop_index:
            return
        for member in self._members:
            try:
                for batch in self.client.read_batches(
                    first_index, stop_index, from_member=member, batch_bytes=self._batch_bytes
                ):
                    yield batch
                    first_index = batch.last_index + 1
                if first_index >= stop_index:  # else it does not know yet that the rest is committed
                    return
            except (LedgerError, ProtocolViolation):
                if member == self._members[-1]:
                    raise

    def time_ms_at(self, index: int) -> int:
        time = self._answer_of(lambda member: self.client.time_at(index, from_member=member))
        return -1 if time is None else milliseconds_of(time)

    def clock_resets(self) -> Resets:
        return self._answer_of(lambda member: self.client.clock_resets(from_member=member))

    def _answer_of(self, ask: Callable[[str | None], T]) -> T:
        for member in self._knowing[:-1]:
            with suppress(LedgerError, ProtocolViolation):
                return ask(member)
        return ask(self._knowing[-1])

    def close(self) -> None:
        self.client.close()


class DirectoryLog:
    def __init__(self, place: Place) -> None:
        self._batch_bytes = place.batch_bytes
        self._reader = reader = DirectoryReader(OsDisk(), place.path)
        try:
            if place.group and reader.group and place.group != reader.group:
                raise ConfigError(f"{place.path} is of group {reader.group}, not {place.group}")
            if not reader.checked:
                raise ConfigError(
                    f"{place.path} was written without digests (by Java, or by an old release):"
                    " pipelines have nothing to check it by; export it, and import it into a cluster"
                )
            self.group = reader.group
            self.cluster_id = reader.formation.cluster_id
            self.begin_index = max(reader.ledger_begin_index, 0)
            self.stop_index = reader.readable_index + 1
            self.missing = reader.missing
        except BaseException:
            reader.close()
            raise

    def batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        if self.missing is not None and stop_index > self.missing.index:
            raise self._reader.refusal(self.missing)
        yield from self._reader.batches(first_index, stop_index, batch_bytes=self._batch_bytes)

    def time_ms_at(self, index: int) -> int:
        return StoredMarks(OsDisk(), self._reader).time_ms_at(index)

    def clock_resets(self) -> Resets:
        return StoredMarks(OsDisk(), self._reader).clock_resets

    def close(self) -> None:
        self._reader.close()


def range_in(log: OpenLog, first_index: int | None, stop_index: int | None) -> tuple[int, int]:
    """(first, stop) of a call that may name them: by default all, and never beyond the log's end. Raises
    ConfigError if the first is behind the last."""
    if first_index is not None and stop_index is not None and stop_index < first_index:
        raise ConfigError(f"a range cannot begin at {first_index} and stop before {stop_index}")
    return (
        log.begin_index if first_index is None else first_index,
        log.stop_index if stop_index is None else min(stop_index, log.stop_index),
    )


def position_at(log: OpenLog, index: int) -> int:
    return int(next(iter(log.batches(index, index + 1))).first_header.pos)


def bytes_of(place: Place) -> int:
    """Of the entries that are there, by the positions of the first and the last one. Raises as
    `open_log`."""
    with closing(open_log(place)) as log:
        if log.begin_index >= log.stop_index:
            return 0
        return position_at(log, log.stop_index - 1) - position_at(log, log.begin_index)


def even_cuts(log: OpenLog, first: int, stop: int, part_bytes: int) -> list[int]:
    """Edges of parts of even bytes, by the positions of a few entries, between which entries are taken
    to be of one length: they follow from the log alone. `first` and `stop` are edges; none for an empty
    range."""
    if first >= stop:
        return []
    samples = np.unique(np.linspace(first, stop - 1, 65).round().astype(np.int64))
    positions = np.array([position_at(log, at) for at in samples.tolist()], np.int64)
    count = max(1, -(-int(positions[-1] - positions[0]) // part_bytes))
    targets = positions[0] + np.arange(1, count) * (positions[-1] - positions[0]) / count
    inner = np.interp(targets, positions, samples).round().astype(np.int64)
    return sorted({first, *inner.tolist(), stop})


def parts_of(place: Place, edges: list[int]) -> list[tuple[Place, int, int]]:
    """(place, first_index, stop_index) of each, for works: followers take turns."""
    place = as_seen_anywhere(place)
    return [
        (msgspec.structs.replace(place, turn=number), *edge)
        for number, edge in enumerate(pairwise(edges))
    ]


def linked(
    batches: Iterator[EntryBatch], first_index: int, stop_index: int, chain: int | None, origin: str
) -> Iterator[EntryBatch]:
    """The same; they are all of the range, each linked to the one before, the first to `chain` (None:
    any). Raises DirectoryDamaged, which names where they are not."""
    next_index = first_index
    for batch in batches:
        if batch.first_index != next_index or batch.last_index >= stop_index:
            raise broken(
                origin,
                next_index,
                f"entries {batch.first_index} .. {batch.last_index} came where {next_index} was due",
            )
        if chain is not None and batch.chain_before != chain:
            raise broken(origin, next_index, "chain_crc does not continue the entry before")
        chain = chain_at_end(batch)
        next_index += batch.count
        yield batch
    if next_index != stop_index:
        raise broken(origin, next_index, f"entries {next_index} .. {stop_index - 1} did not come")


class Ends(msgspec.Struct, frozen=True):
    """chain_crc before a work's entries, and of its last entry."""

    before: int
    last: int

    def behind(self, ends: Ends | None, first_index: int, origin: str) -> Ends:
        """Itself. Raises DirectoryDamaged unless it continues `ends`, those of the work in front, for
        which another member may have been asked."""
        if ends is not None and ends.last != self.before:
            raise broken(origin, first_index, "chain_crc does not continue the entry before")
        return self


def chain_at_end(batch: EntryBatch) -> int:
    return int(batch.words()[4][-1]) & 0xFFFFFFFF


def broken(origin: str, index: int, why: str) -> DirectoryDamaged:
    return DirectoryDamaged(f"{origin}: entry {index}: {why}", path=origin, position=-1, index=index)


def chain_before(log: OpenLog, index: int) -> int | None:
    """chain_crc of the entry before; None if the log does not hold it and it is unknown."""
    if index == 0:
        return 0
    if not log.begin_index <= index < log.stop_index:
        if not log.begin_index <= index - 1 < log.stop_index:
            return None
        return chain_at_end(next(iter(log.batches(index - 1, index))))
    return next(iter(log.batches(index, index + 1))).chain_before
