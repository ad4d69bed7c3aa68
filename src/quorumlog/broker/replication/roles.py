"""What decides over failover sees of a broker: `ReplicatedBroker`. Who decides (an operator, a
coordinator) is outside, and says so by these calls only.

Rules that whoever calls may build on:

- An *epoch* is a number and the directory that leads: no two masters ever have the same. A broker stores
  the highest epoch that it was told, on its disk, before the call returns; it refuses everything, from
  callers and from masters, that bears a lower one.
- `confirm_offset` never falls, neither on a broker nor over a switch: consumers saw what lies below.
- In a *fixed* in-sync set (`in_sync_set` is given) an acknowledgement needs every member of it. Somebody
  who wants a slave out of it first stores the smaller set, then calls `wait_for`; somebody who wants one
  in first calls `wait_for`, and stores the larger set once the slave `holds_confirmed`.
- Without a set (`in_sync_set` is None: a switch by hand) an acknowledgement needs k of the list that
  replicates with the log (`broker.epochs`), whichever they are.

The calls block for the disk. Any thread but the event loop's; they take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quorumlog.broker.store.log_files import Role


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker is reached."""

    id: str
    address: str
    """Of its clients: HOST:PORT."""
    ha_address: str
    """Of its slaves: HOST:PORT."""


class Member(NamedTuple):
    """Of an in-sync set. A store that was wiped comes back under its id and is another one: what it
    acknowledges says nothing of the directory that is in the set, and may come back, too."""

    id: str
    directory_id: str


InSyncSet = frozenset[Member]


@dataclass(frozen=True, slots=True)
class SlaveState:
    """A slave as its master knows it."""

    id: str
    directory_id: str
    """Of its store: drawn at random when that was made. One that was wiped is another slave."""
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


class ReplicatedBroker(Protocol):
    """One broker that has a store, and is master or slave."""

    @property
    def id(self) -> str: ...

    @property
    def directory_id(self) -> str: ...

    @property
    def address(self) -> BrokerAddress: ...

    @property
    def epoch(self) -> int:
        """The highest that it was told. 0: none yet."""

    @property
    def log_epoch(self) -> int:
        """Of the last master that has written into its log. Which of two logs has more does not follow
        from it alone: a run without bytes counts, too (`epoch_rule.Rank`), or the in-sync set says
        it."""

    @property
    def fenced_by(self) -> int:
        """A newer epoch than it leads in, that a slave has promised; 0: none."""

    @property
    def role(self) -> Role: ...

    @property
    def master(self) -> BrokerAddress | None:
        """Whom a slave was told to follow."""

    @property
    def max_offset(self) -> int:
        """Behind the last whole record that was written."""

    @property
    def flushed_offset(self) -> int:
        """Behind the last whole record that is on disk."""

    @property
    def confirm_offset(self) -> int:
        """Of a slave: as far as it knows."""

    @property
    def in_sync_set(self) -> InSyncSet | None:
        """The master included."""

    def promise(self, epoch: int) -> None:
        """Store it, and stop what belongs to a lower one: a master refuses what is sent, a slave hears
        and acknowledges nothing of its master. Before a lease is taken. Raises StaleEpoch,
        StoreFailure."""

    def become_master(self, epoch: int, in_sync_set: InSyncSet) -> None:
        """Write from now on. Returns once messages are taken; they are acknowledged as slaves connect.
        Raises StaleEpoch where a higher epoch was promised, or this one was led already;
        StoreFailure."""

    def become_slave(self, epoch: int, master: BrokerAddress) -> None:
        """Follow this master. What the own log has beyond the last point in common with the master's is
        set aside, once the master has shown a newer epoch. One of a lower epoch than was promised hears
        of that, and nothing is taken of it. Raises StaleEpoch, StoreFailure."""

    def stop_acknowledging(self) -> None:
        """From the moment that this returns nothing more is acknowledged, until `become_master`: what is
        under way ends as an unknown outcome, what comes is refused. Never blocks; any thread."""

    may_acknowledge: Callable[[], bool]
    """Asked in the last moment before each acknowledgement, and before consumers see anything new: false
    once a lease is over, so that a process that was paused says nothing that it may not. Any thread;
    never blocks."""

    def wait_for(self, in_sync_set: InSyncSet) -> None:
        """The master acknowledges what all of them hold. It is in it itself; a member that is not
        connected is waited for. Never blocks; any thread."""

    def slaves(self) -> list[SlaveState]:
        """Of a master: all that were ever connected to it in this run. Any thread."""

    on_slave_change: Callable[[SlaveState], None]
    """On the event loop: a slave has caught up, holds what is confirmed, or has fallen behind (also
    because its connection is lost). It says which by its fields."""
