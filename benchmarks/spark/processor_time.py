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

    def since(self, earlier: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(*(now - then for now, then in zip(self, earlier, strict=True)))


def jvm_of(spark: SparkSession) -> int:
    """The process id."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    pid: int = gateway.proc.pid
    return pid


def processor_time(jvm: int, members: Iterable[int]) -> ProcessorTime:
    """By now, of these processes by their ids. A worker that has ended counts as its parent's child."""
    own, reaped = _seconds(jvm)
    below = sum(sum(_seconds(pid)) for pid in _descendants(jvm))
    return ProcessorTime(own, reaped + below, sum(_seconds(pid)[0] for pid in members))


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
