"""Splits a query's entries into tasks, and the checks of each task's range."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from quorumlog.batch import EntryBatch
from quorumlog.header_array import Int64Array, field_of
from quorumlog.spark.options import IndexRange
from quorumlog.spark.short_errors import RangeMismatch

WORTHWHILE_BYTES = 4 << 20
"""A smaller part of a log is no gain as a task of its own."""
_SAMPLES, _MAX_SAMPLES = 8, 64
"""For each cut, and for all. Between two of them entries are taken to be equally long."""
MAX_PLANNED_CHAINS = 256
"""Of more partitions the tasks ask for the chain at their ends themselves, each beside its reading: the
planner would ask for thousands, one after the other."""
ASK_CHAIN = -1
"""In place of a chain: the task asks for it."""


class Readers(NamedTuple):
    """Members that can serve a range; none for a directory."""

    preferred: tuple[str, ...] = ()
    """Partitions are spread over these."""
    others: tuple[str, ...] = ()
    """Asked where the preferred ones fail."""
    servers: tuple[str, ...] = ()
    """Where the members are by now."""
    scanned_index: int = -1
    """Of a directory: up to here the plan has looked for damage, and tasks need not."""


NO_READERS = Readers()


PointsOf = Callable[[Sequence[int]], "list[EntryPoint]"]
"""Of entries by their indices, in this order."""


class EntryPoint(NamedTuple):
    """Byte position in the log, and `chain_crc`, of an entry."""

    position: int
    chain: int


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """One task: entries of [first_index, stop_index), no-ops included."""

    group: str
    first_index: int
    stop_index: int
    members: tuple[str, ...] = ()
    """Ids of the members to read from, in the order to try them; empty for a directory."""
    previous_chain: int | None = None
    """chain_crc of the entry before the first; None: that one is no longer held; or `ASK_CHAIN`."""
    last_chain: int | None = None
    """chain_crc of the last entry, or `ASK_CHAIN`. It is `previous_chain` of the next partition, so that
    all tasks together read one linked log, whichever members they read it from."""
    servers: tuple[str, ...] = ()
    """Where members are that the plan has learned of: those of the option may all have gone."""
    scanned_index: int = -1
    """See `Readers`."""

    @property
    def count(self) -> int:
        return self.stop_index - self.first_index


def plan(
    group: str,
    index_range: IndexRange,
    points_of: PointsOf,
    *,
    begin_index: int,
    min_partitions: int,
    partition_bytes: int,
    max_records: int = 0,
    readers: Readers = NO_READERS,
) -> list[LedgerPartition]:
    """Cut `index_range` into partitions in order of index, without gap or overlap.

    A partition has about `partition_bytes` at most, unless it is a single entry, and at most
    `max_records` entries unless that is 0. `min_partitions` 0: one for each core of this machine, where
    each has `WORTHWHILE_BYTES`. `begin_index`: the first index that the log holds.
    """
    first_index, stop_index = index_range
    if first_index == stop_index:
        return []
    known: dict[int, EntryPoint] = {}

    def points_at(indices: Sequence[int]) -> list[EntryPoint]:
        """Each index is asked for once."""
        missing = [index for index in dict.fromkeys(indices) if index not in known]
        known.update(zip(missing, points_of(missing), strict=True))
        return [known[index] for index in indices]

    last_index = stop_index - 1
    begin, end = (point.position for point in points_at([first_index, last_index]))
    # Where the last entry ends is unknown; it is taken to be as long as the average of the others.
    average = round((end - begin) / max(last_index - first_index, 1))
    total_bytes = end + average - begin
    least = min_partitions or min(os.cpu_count() or 1, total_bytes // WORTHWHILE_BYTES)
    count = max(least, -(-total_bytes // partition_bytes), 1)
    if max_records:
        count = max(count, -(-(stop_index - first_index) // max_records))
    count = min(count, stop_index - first_index)
    samples = np.linspace(first_index, last_index, min(_SAMPLES * (count - 1) + 2, _MAX_SAMPLES))
    samples = np.unique(samples.round().astype(np.int64))
    positions = np.array([point.position for point in points_at(samples.tolist())], np.int64)
    samples = np.append(samples, stop_index)
    positions = np.append(positions, end + average)
    targets = positions[0] + np.arange(1, count) * total_bytes / count
    cuts = np.interp(targets, positions, samples).round().astype(np.int64)
    edges = np.unique(np.concatenate([[first_index], cuts, [stop_index]]))
    if max_records:
        edges = _limit_gaps(edges, max_records)
    edges = _with_pieces(edges, min(min_partitions, stop_index - first_index))
    chains = _chains_at(edges.tolist(), points_at, begin_index)
    return [
        LedgerPartition(
            group,
            low,
            high,
            _in_turn(readers, number),
            chains[low],
            chains[high],
            readers.servers,
            readers.scanned_index,
        )
        for number, (low, high) in enumerate(pairwise(edges.tolist()))
    ]


def _chains_at(edges: list[int], points_of: PointsOf, begin_index: int) -> dict[int, int | None]:
    """By edge: chain_crc of the entry before it."""
    chains: dict[int, int | None] = dict.fromkeys(edges, ASK_CHAIN)
    chains[edges[0]] = 0 if edges[0] == 0 else None
    missing = edges if len(edges) <= MAX_PLANNED_CHAINS else [edges[0], edges[-1]]
    missing = [edge for edge in missing if edge > begin_index]
    points = points_of([edge - 1 for edge in missing])
    chains.update((edge, point.chain) for edge, point in zip(missing, points, strict=True))
    return chains


def with_chains(partition: LedgerPartition, points_of: PointsOf) -> LedgerPartition:
    """In the task: the checks left to it by the plan."""
    ends = (partition.first_index - 1, partition.stop_index - 1)
    chains = [partition.previous_chain, partition.last_chain]
    missing = [place for place in (0, 1) if chains[place] == ASK_CHAIN]
    points = points_of([ends[place] for place in missing]) if missing else ()
    for place, point in zip(missing, points, strict=True):
        chains[place] = point.chain
    return replace(partition, previous_chain=chains[0], last_chain=chains[1])


def _limit_gaps(edges: Int64Array, limit: int) -> Int64Array:
    """`edges` with further ones between, so that no two neighbours are more than `limit` apart."""
    limited = [
        low + (high - low) * piece // pieces
        for low, high in pairwise(edges.tolist())
        for pieces in [-(-(high - low) // limit)]
        for piece in range(pieces)
    ]
    return np.array([*limited, edges[-1]], np.int64)


def _with_pieces(edges: Int64Array, least: int) -> Int64Array:
    """`edges` with further ones between, so that there are `least` pieces: several cuts by bytes fall
    into one entry that is larger than a piece."""
    gaps = [(low - high, low, high) for low, high in pairwise(edges.tolist())]
    heapq.heapify(gaps)
    while len(gaps) < least:
        _, low, high = gaps[0]
        middle = (low + high) // 2
        heapq.heapreplace(gaps, (low - middle, low, middle))
        heapq.heappush(gaps, (middle - high, middle, high))
    return np.array([*sorted(low for _, low, _ in gaps), edges[-1]], np.int64)


def _in_turn(readers: Readers, number: int) -> tuple[str, ...]:
    turn = number % max(len(readers.preferred), 1)
    return (*readers.preferred[turn:], *readers.preferred[:turn], *readers.others)


# ----------------------------------------------------------------
# RangeCheck: what a task proves about its range before Spark may count it as read.
#
# The entries must come in order, without gap or repetition and as many as planned, linked by `chain_crc`
# across batches and so across the members that sent them. Each batch in itself was checked, with its
# bodies, by its reader; here it has to continue the one before. An entry that is missing or differs
# ends the task; it never becomes a smaller result.


__all__ = ["RangeCheck", "RangeMismatch"]


class RangeCheck:
    def __init__(self, partition: LedgerPartition) -> None:
        self.partition = partition
        self.next_index = partition.first_index
        self.is_chained = True
        """Off for a log written without digests."""
        self._count = 0
        self._lost = 0
        self._chain = partition.previous_chain
        """chain_crc of the entry before `next_index`; None: not known, the next batch has to do."""

    @property
    def is_complete(self) -> bool:
        return self.next_index == self.partition.stop_index

    def accept(self, batch: EntryBatch, origin: str) -> None:
        """`origin` (a member, a directory) returned it. Raises RangeMismatch, and then accepts nothing
        of it, so that another member can be asked."""
        if batch.count == 0 or batch.count > self.partition.stop_index - self.next_index:
            raise RangeMismatch(
                f"{origin} gave {batch.count} entries from index {self.next_index} on, asked for"
                f" {self.partition.stop_index - self.next_index}"
            )
        if batch.first_index != self.next_index:
            raise RangeMismatch(f"{origin}: entries from index {self.next_index} on are not contiguous")
        if self.is_chained and self._chain not in (None, batch.chain_before):
            raise RangeMismatch(f"{origin}: chain_crc does not match at index {self.next_index}")
        self._chain = int(field_of(batch.words(), "chain_crc")[-1])
        self._count += batch.count
        self.next_index += batch.count

    def skip_to(self, index: int) -> None:
        """Entries below are lost, and the query continues without them."""
        assert self.next_index < index <= self.partition.stop_index, (
            f"skip from {self.next_index} to {index} in {self.partition}"
        )
        self._lost += index - self.next_index
        self._chain = None
        self.next_index = index

    def finish(self) -> None:
        """Raises RangeMismatch unless the whole range was read."""
        expected = self.partition.count - self._lost
        if not self.is_complete or self._count != expected:
            raise RangeMismatch(
                f"read {self._count} entries up to offset {self.next_index} of group"
                f" {self.partition.group!r}; the plan has {expected} entries from index"
                f" {self.partition.first_index} up to offset {self.partition.stop_index}"
            )
        last_chain = self.partition.last_chain
        if self.is_chained and self._count and last_chain not in (None, self._chain):
            raise RangeMismatch(
                f"entries up to {self.next_index - 1} of group {self.partition.group!r} end with"
                f" chain_crc {self._chain}; the plan has {last_chain}"
            )
