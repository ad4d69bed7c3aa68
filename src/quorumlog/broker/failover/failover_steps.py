"""What `FailoverRules` ask to be done: of the coordinator, and of the own broker."""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumlog.broker.failover.coordinator import ElectionRecord
from quorumlog.broker.replication.roles import BrokerAddress, InSyncSet

# Of the coordinator; `ask` makes the call, of a simulated one, too. Any number may be under way; answers
# may come in any order.


class Read(NamedTuple):
    def ask(self, coordinator: Any) -> Any:
        return coordinator.read()


class Grant(NamedTuple):
    ttl_ms: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.grant(self.ttl_ms)


class Put(NamedTuple):
    revision: int
    record: ElectionRecord
    lease: int
    takes: bool = False

    def ask(self, coordinator: Any) -> Any:
        return coordinator.put(self.revision, self.record.encode(), self.lease, takes=self.takes)


class Renew(NamedTuple):
    lease: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.renew(self.lease)


class Revoke(NamedTuple):
    lease: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.revoke(self.lease)


Request = Read | Grant | Put | Renew | Revoke


class Ask(NamedTuple):
    number: int
    request: Request


# Of the own broker: `ReplicatedBroker` has a call for each. In this order, one after the other; but
# StopAcknowledging and WaitFor at once.


class StopAcknowledging(NamedTuple):
    pass


class WaitFor(NamedTuple):
    in_sync_set: InSyncSet


class Promise(NamedTuple):
    epoch: int


class Lead(NamedTuple):
    epoch: int
    in_sync_set: InSyncSet


class Follow(NamedTuple):
    epoch: int
    master: BrokerAddress


BrokerStep = StopAcknowledging | WaitFor | Promise | Lead | Follow
Step = Ask | BrokerStep
