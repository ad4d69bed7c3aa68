"""Where a query's processor time goes: the JVM, the Python workers below it, and the members."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessorTime(NamedTuple):
    """Seconds."""

    jvm: float
    workers: float
    members: float


class Watched(NamedTuple):
    """What processes have spent by now, by their ids."""

    jvm: float
    workers: dict[int, float]
    """Each with those below it that have ended."""
    members: float

    def since(self, earlier: Watched) -> ProcessorTime:
        """Of a worker that has ended, what it spent last is not known."""
        spent = (now - earlier.workers.get(pid, 0.0) for pid, now in self.workers.items())
        return ProcessorTime(self.jvm - earlier.jvm, sum(spent), self.members - earlier.members)


def jvm_of(spark: SparkSession) -> int:
    """The process id."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    pid: int = gateway.proc.pid
    return pid


def watched(jvm: int, members: Iterable[int]) -> Watched:
    """The JVM, the workers below it, and members by their process ids."""
    own, reaped = _seconds(jvm)
    workers = {pid: sum(_seconds(pid)) for pid in _descendants(jvm)}
    return Watched(own, workers | {jvm: reaped}, sum(_seconds(pid)[0] for pid in members))


def _seconds(pid: int) -> tuple[float, float]:
    """Its own, and that of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # has ended meanwhile
        return 0.0, 0.0
    user, system, children_user, children_system = (int(field) / _TICKS for field in fields[11:15])
    return user + system, children_user + children_system


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from _descendants(child)
