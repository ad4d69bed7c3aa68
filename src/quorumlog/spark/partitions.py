"""Partitions: an index range cut into tasks of about equal bytes.

A Python task costs Spark 25-30 ms, so a task should have some 100 MiB; but every core should have one.
How many cores the workers have is not told where a query is planned: this machine's stand for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from quorumlog.header_array import Int64Array
from quorumlog.spark.offsets import IndexRange

WORTHWHILE_BYTES = 4 << 20
"""A smaller part of a log is no gain as a task of its own."""
_MAX_SAMPLES = 64
"""Between two of them entries are taken to be equally long."""


class Readers(NamedTuple):
    """Who can serve a range; both empty for a directory."""

    preferred: tuple[str, ...] = ()
    """Partitions are spread over these."""
    others: tuple[str, ...] = ()
    """Asked where the preferred ones fail."""
    servers: tuple[str, ...] = ()
    """Where the members are by now."""


NO_READERS = Readers()


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
    """chain_crc of the entry before the first; None: that one is no longer held."""
    last_chain: int | None = None
    """chain_crc of the last entry. It is `previous_chain` of the next partition, so that all tasks
    together read one linked log, whichever members they read it from."""
    servers: tuple[str, ...] = ()
    """Where members are that the plan has learned of: those of the option may all have gone."""

    @property
    def count(self) -> int:
        return self.stop_index - self.first_index


def plan(
    group: str,
    index_range: IndexRange,
    point_of: Callable[[int], EntryPoint],
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
    samples = np.unique(
        np.linspace(first_index, stop_index - 1, min(_MAX_SAMPLES, stop_index - first_index))
        .round()
        .astype(np.int64)
    )
    positions = np.array([point_of(index).position for index in samples.tolist()], np.int64)
    # Where the last entry ends is unknown; it is taken to be as long as the average of the others.
    average = (positions[-1] - positions[0]) / max(stop_index - 1 - first_index, 1)
    samples = np.append(samples, stop_index)
    positions = np.append(positions, positions[-1] + round(average))
    total_bytes = int(positions[-1] - positions[0])
    least = min_partitions or min(os.cpu_count() or 1, total_bytes // WORTHWHILE_BYTES)
    count = max(least, -(-total_bytes // partition_bytes), 1)
    if max_records:
        count = max(count, -(-(stop_index - first_index) // max_records))
    count = min(count, stop_index - first_index)
    targets = positions[0] + np.arange(1, count) * total_bytes / count
    cuts = np.interp(targets, positions, samples).round().astype(np.int64)
    edges = np.unique(np.concatenate([[first_index], cuts, [stop_index]]))
    if max_records:
        edges = _limit_gaps(edges, max_records)
    chains: dict[int, int | None] = {
        edge: point_of(edge - 1).chain for edge in edges.tolist() if edge > begin_index
    }
    chains.setdefault(first_index, 0 if first_index == 0 else None)
    return [
        LedgerPartition(
            group, low, high, _in_turn(readers, number), chains[low], chains[high], readers.servers
        )
        for number, (low, high) in enumerate(pairwise(edges.tolist()))
    ]


def _limit_gaps(edges: Int64Array, limit: int) -> Int64Array:
    """`edges` with further ones between, so that no two neighbours are more than `limit` apart."""
    limited = [
        low + (high - low) * piece // pieces
        for low, high in pairwise(edges.tolist())
        for pieces in [-(-(high - low) // limit)]
        for piece in range(pieces)
    ]
    return np.array([*limited, edges[-1]], np.int64)


def _in_turn(readers: Readers, number: int) -> tuple[str, ...]:
    turn = number % max(len(readers.preferred), 1)
    return (*readers.preferred[turn:], *readers.preferred[:turn], *readers.others)
