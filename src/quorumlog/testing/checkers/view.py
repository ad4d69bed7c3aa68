"""What checkers see of a cluster: nothing by which they could change it, and not how it is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorumlog.entry import Replica
from quorumlog.node import LedgerNode
from quorumlog.testing.disk import SimDisk
from quorumlog.testing.operations import Operations
from quorumlog.testing.profile import SimulationProfile
from quorumlog.testing.trace import Trace
from quorumlog.testing.wall_clock import WallClock


class CheckedMember(Protocol):
    @property
    def place(self) -> str:
        """Two of them may have one id."""

    @property
    def member_id(self) -> str: ...

    @property
    def replica(self) -> Replica: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def level(self) -> int:
        """Of the log's format, up to which its release knows it."""

    @property
    def lost_power(self) -> bool:
        """Since it was last up: what was not synced may be gone."""

    @property
    def node(self) -> LedgerNode:
        """Of a member that is up."""

    @property
    def local_ms(self) -> float:
        """By its own monotonic clock."""

    @property
    def wall_clock(self) -> WallClock: ...

    @property
    def disk(self) -> SimDisk: ...

    @property
    def path(self) -> str:
        """Of its directory on its disk."""


class CheckedCluster(Protocol):
    @property
    def members(self) -> Sequence[CheckedMember]: ...

    @property
    def profile(self) -> SimulationProfile: ...

    @property
    def now_ms(self) -> float: ...

    @property
    def is_faulty(self) -> bool:
        """Faults strike; afterwards everything must become whole."""

    @property
    def operations(self) -> Operations: ...

    @property
    def trace(self) -> Trace: ...
