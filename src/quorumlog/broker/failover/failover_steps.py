"""What `FailoverRules` ask to be done: of the coordinator, and of the own broker."""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumlog.broker.epochs.epoch_history import Peer
from quorumlog.broker.failover.coordinator import ElectionRecord
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.roles import InSyncSet

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


# Of the own broker; `do` makes the call. StopAcknowledging and WaitFor at once; the others block for the
# disk, one after the other in this order, and then `FailoverRules.done` is told.


class StopAcknowledging(NamedTuple):
    def __str__(self) -> str:
        return "this broker acknowledges nothing more"

    def do(self, broker: Replica) -> None:
        broker.stop_acknowledging()


class WaitFor(NamedTuple):
    in_sync_set: InSyncSet

    def __str__(self) -> str:
        return f"acknowledgements need {', '.join(sorted(each.id for each in self.in_sync_set))}"

    def do(self, broker: Replica) -> None:
        broker.wait_for(self.in_sync_set)


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


AtOnce = StopAcknowledging | WaitFor
OnDisk = Promise | Lead | Follow
Step = Ask | AtOnce | OnDisk
