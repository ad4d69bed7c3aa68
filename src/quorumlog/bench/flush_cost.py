"""The cost of a sync on a disk, by preparation of the file and system call.

Every write goes to a place not written before, as in a log. The variants take turns, one write each, so
that other load of the disk affects all alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quorumlog.bench.raw_limit import unnamed_file
from quorumlog.config import KIB
from quorumlog.entry_header import HEADER_BYTES

SIZES = (1 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
INDEX_UNIT_BYTES = 32
RECORD_BYTES = HEADER_BYTES + 1 * KIB
"""Bytes of the entry of one index unit."""
_FILL_BYTES = 1 << 20


class SyncWay(NamedTuple):
    """One way to have bytes on disk when the call returns."""

    name: str
    sync: Callable[[int], None] | None
    """None: the write itself waits for the disk."""
    prepare: str
    """`reserved` by posix_fallocate, `zeroed` by writing zeros, or `growing` from nothing."""
    flags: int = 0
    with_index: bool = False
    """An index file is written and synced too."""


WAYS = (
    SyncWay("fdatasync, reserved space", os.fdatasync, "reserved"),
    SyncWay("fdatasync, zeroed space", os.fdatasync, "zeroed"),
    SyncWay("fdatasync, growing file", os.fdatasync, "growing"),
    SyncWay("fsync, reserved space", os.fsync, "reserved"),
    SyncWay("O_DSYNC, reserved space", None, "reserved", os.O_DSYNC),
    SyncWay("fdatasync of data and index", os.fdatasync, "reserved", with_index=True),
)
OURS = WAYS[0].name
"""The calls of a member for an acknowledgement."""


class FlushCost(NamedTuple):
    way: str
    write_bytes: int
    syncs: int
    p50_ms: float
    p99_ms: float

    def row(self) -> dict[str, Any]:
        return {"workload": "flush", **self._asdict()}


def measure_flush_costs(directory: Path, rounds: int, report: Callable[[str], None]) -> list[FlushCost]:
    """Medians and 99th percentiles of `rounds` writes, each with its sync. Raises OSError."""
    with ExitStack() as stack:
        writers = [
            _Writer(stack, directory, way, size_bytes, rounds) for way in WAYS for size_bytes in SIZES
        ]
        for number in range(rounds):
            report(f"flush: round {number + 1} of {rounds}")
            for writer in writers:
                writer.write(number)
    return [writer.cost() for writer in writers]


class _Writer:
    def __init__(
        self, stack: ExitStack, directory: Path, way: SyncWay, write_bytes: int, rounds: int
    ) -> None:
        def prepared(file_bytes: int) -> int:
            descriptor = stack.enter_context(unnamed_file(str(directory), way.flags))
            if way.prepare == "reserved":
                os.posix_fallocate(descriptor, 0, file_bytes)
            elif way.prepare == "zeroed":
                zeros = bytes(_FILL_BYTES)
                for position in range(0, file_bytes, _FILL_BYTES):
                    os.pwrite(descriptor, zeros[: file_bytes - position], position)
            os.fsync(descriptor)
            return descriptor

        self._way = way
        self._piece = os.urandom(write_bytes)
        self._units = self._piece[: max(1, write_bytes // RECORD_BYTES) * INDEX_UNIT_BYTES]
        self._data = prepared(write_bytes * rounds)
        self._index = prepared(len(self._units) * rounds) if way.with_index else None
        self._took_s: list[float] = []

    def write(self, number: int) -> None:
        began = time.perf_counter()
        os.pwrite(self._data, self._piece, number * len(self._piece))
        if self._way.sync is not None:
            self._way.sync(self._data)
        if self._index is not None:
            os.pwrite(self._index, self._units, number * len(self._units))
            os.fdatasync(self._index)
        self._took_s.append(time.perf_counter() - began)

    def cost(self) -> FlushCost:
        p50_ms, p99_ms = (float(q) * 1000 for q in np.percentile(self._took_s, (50, 99)))
        return FlushCost(self._way.name, len(self._piece), len(self._took_s), p50_ms, p99_ms)
