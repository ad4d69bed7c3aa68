"""What `FailoverRules` want done that takes a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from quorumlog.broker.epochs.epoch_history import Peer
from quorumlog.broker.failover.coordinator import ElectionRecord
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.roles import InSyncSet

# Of the coordinator, which may be a simulated one. Any number may be under way; answers may come in any
# order.


@dataclass(frozen=True, eq=False, slots=True)
class Read:
    def ask(self, coordinator: Any) -> Any:
        return coordinator.read()


@dataclass(frozen=True, eq=False, slots=True)
class Grant:
    ttl_ms: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.grant(self.ttl_ms)


@dataclass(frozen=True, eq=False, slots=True)
class Put:
    revision: int
    record: ElectionRecord
    lease: int
    takes: bool = False

    def ask(self, coordinator: Any) -> Any:
        return coordinator.put(self.revision, self.record.encode(), self.lease, takes=self.takes)


@dataclass(frozen=True, eq=False, slots=True)
class Renew:
    lease: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.renew(self.lease)


@dataclass(frozen=True, eq=False, slots=True)
class Revoke:
    lease: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.revoke(self.lease)


# Of the own broker: they block for the disk, one after the other in this order, and then
# `FailoverRules.done` is told.


class Promise(NamedTuple):
    epoch: int

    def __str__(self) -> str:
        return f"this broker promises epoch {self.epoch}"

    def do(self, broker: Replica) -> None:
        broker.promise(self.epoch)


class Lead(NamedTuple):
    epoch: int
    in_sync_set: InSyncSet

    def __str__(self) -> str:
        return f"this broker leads in epoch {self.epoch}"

    def do(self, broker: Replica) -> None:
        broker.become_master(self.epoch, self.in_sync_set)


class Follow(NamedTuple):
    epoch: int
    master: Peer

    def __str__(self) -> str:
        return f"this broker follows {self.master.id} in epoch {self.epoch}"

    def do(self, broker: Replica) -> None:
        broker.become_slave(self.epoch, self.master)


Request = Read | Grant | Put | Renew | Revoke
OnDisk = Promise | Lead | Follow
