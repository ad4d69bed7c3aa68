"""System: what the run knows about each thing that it measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.peers.cache import Cache

BODY_BYTES = 1024
MEMBERS = 3
IN_FLIGHT_RECORDS = 2048
"""Of one client that sends in bulk: as many as 8 batches of 256."""

WORKLOADS = ("one-writer", "64-writers", "256-writers", "bulk", "batch-call")
"""The last one is for a system that can send in larger batches than it does of itself in `bulk`."""


class MeasuringFailed(RuntimeError):
    """Servers that did not start or a load that broke off; the message says why, in a few lines."""


class Shape(NamedTuple):
    """How one system carries a workload out."""

    writers: int
    """A connection each."""
    in_flight: int
    """Operations under way on each connection."""
    batch_records: int
    """Records in one operation; a latency is that of an operation."""
    how: str


SINGLES: Mapping[str, Shape] = {
    "one-writer": Shape(1, 1, 1, "one connection, one in flight"),
    "64-writers": Shape(64, 1, 1, "64 connections, one in flight each"),
    "256-writers": Shape(256, 1, 1, "256 connections, one in flight each"),
}


class Figures(NamedTuple):
    """What one load came to; NaN where nothing was acknowledged in the window."""

    records_per_second: float
    operations_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_record: float
    """User and system time of the three members and their children, for each record acknowledged."""


class Running(Protocol):
    """Three members that are ready for a load."""

    def measure(self, workload: str, seconds: float) -> Figures:
        """Raises MeasuringFailed."""


class System(ABC):
    name: str
    """As in the table and for `--peer`; a variant is named FAMILY-VARIANT."""
    family: str
    durability: str
    """What has happened to a record by the time that it is acknowledged: in a few words."""
    synced: bool
    """True if that includes a sync of the disk on a majority."""
    shapes: Mapping[str, Shape]
    """By workload; one that is missing cannot be done with this system."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name and version."""

    @abstractmethod
    def set_up(self, cache: Cache) -> None:
        """Install it. Raises `cache.Unavailable`."""

    @abstractmethod
    def running(self, folder: Path) -> AbstractContextManager[Running]:
        """Three members with their data under `folder`; at the end none is left. Raises MeasuringFailed
        if they do not become ready."""
