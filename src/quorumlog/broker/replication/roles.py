"""Who counts where somebody outside says it (`failover`), and what is known of a slave.

An acknowledgement then needs every member of an in-sync set. Somebody who wants a slave out of it first
stores the smaller set, then calls `Replica.wait_for`; somebody who wants one in first calls that, and
stores the larger set once the slave `holds_confirmed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Member(NamedTuple):
    """A store that was wiped comes back under its id and is another one: what it acknowledges says
    nothing of the directory that is in the set, and may come back, too."""

    id: str
    directory_id: str


InSyncSet = frozenset[Member]
"""The master included."""


@dataclass(frozen=True, slots=True)
class SlaveState:
    """A slave as its master knows it."""

    id: str
    directory_id: str
    is_connected: bool
    written_offset: int
    flushed_offset: int
    lag_bytes: int
    lag_ms: int
    """Since when it lacks something."""
    is_caught_up: bool
    """Connected, and lacks less than `ha_max_gap_not_in_sync` bytes and `ha_max_lag_not_in_sync` ms."""
    holds_confirmed: bool
    """It has acknowledged everything below `confirm_offset`. True of a slave that is waited for stays
    true."""
    release: str = ""
    """Empty: it did not say it."""

    @property
    def member(self) -> Member:
        return Member(self.id, self.directory_id)
