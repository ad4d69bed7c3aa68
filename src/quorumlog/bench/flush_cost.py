"""What a sync costs on a disk, by how the file was prepared and what is called.

Every way writes sizes that a member writes, each time to a place of its file that was not written
before, as a log does. The ways take turns, one write each, so that whatever else the disk does meets
all alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
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
"""What one index unit stands for."""
_FILL_BYTES = 1 << 20


class Way(NamedTuple):
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
    Way("fdatasync, reserved space", os.fdatasync, "reserved"),
    Way("fdatasync, zeroed space", os.fdatasync, "zeroed"),
    Way("fdatasync, growing file", os.fdatasync, "growing"),
    Way("fsync, reserved space", os.fsync, "reserved"),
    Way("O_DSYNC, reserved space", None, "reserved", os.O_DSYNC),
    Way("fdatasync of data and index", os.fdatasync, "reserved", with_index=True),
)
OURS = WAYS[0].name
"""What a member does for an acknowledgement."""


class FlushCost(NamedTuple):
    way: str
    write_bytes: int
    syncs: int
    p50_ms: float
    p99_ms: float

    def row(self) -> dict[str, Any]:
        return {"workload": "flush", **self._asdict()}


def measure_flush_costs(
    directory: Path,
    rounds: int,
    report: Callable[[str], None],
    *,
    sizes: Sequence[int] = SIZES,
    ways: Sequence[Way] = WAYS,
) -> list[FlushCost]:
    """Medians and 99th percentiles of `rounds` writes, each with its sync. Raises OSError."""
    took_s: dict[tuple[str, int], list[float]] = {
        (way.name, size_bytes): [] for way in ways for size_bytes in sizes
    }
    with ExitStack() as stack:
        files = [
            _prepared(stack, directory, way, size_bytes, rounds) for way in ways for size_bytes in sizes
        ]
        pieces = {size_bytes: os.urandom(size_bytes) for size_bytes in sizes}
        for number in range(rounds):
            report(f"flush: round {number + 1} of {rounds}")
            for way, size_bytes, data, index in files:
                began = time.perf_counter()
                os.pwrite(data, pieces[size_bytes], number * size_bytes)
                if way.sync is not None:
                    way.sync(data)
                if index is not None:
                    units = pieces[size_bytes][: _index_bytes(size_bytes)]
                    os.pwrite(index, units, number * len(units))
                    os.fdatasync(index)
                took_s[way.name, size_bytes].append(time.perf_counter() - began)
    return [
        FlushCost(
            name, size_bytes, len(times), *(float(np.percentile(times, q)) * 1000 for q in (50, 99))
        )
        for (name, size_bytes), times in took_s.items()
    ]


class _Files(NamedTuple):
    way: Way
    write_bytes: int
    data_file: int
    index_file: int | None
    """Descriptors; the files have no name any more."""


def _prepared(stack: ExitStack, directory: Path, way: Way, write_bytes: int, rounds: int) -> _Files:
    data = _opened(stack, directory, way, write_bytes * rounds)
    index = None
    if way.with_index:
        index = _opened(stack, directory, way, _index_bytes(write_bytes) * rounds)
    return _Files(way, write_bytes, data, index)


def _index_bytes(size_bytes: int) -> int:
    return max(1, size_bytes // RECORD_BYTES) * INDEX_UNIT_BYTES


def _opened(stack: ExitStack, directory: Path, way: Way, file_bytes: int) -> int:
    descriptor = stack.enter_context(unnamed_file(str(directory), way.flags))
    if way.prepare == "reserved":
        os.posix_fallocate(descriptor, 0, file_bytes)
    elif way.prepare == "zeroed":
        zeros = bytes(_FILL_BYTES)
        for position in range(0, file_bytes, _FILL_BYTES):
            os.pwrite(descriptor, zeros[: file_bytes - position], position)
    os.fsync(descriptor)
    return descriptor
