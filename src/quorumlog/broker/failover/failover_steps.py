"""What `FailoverRules` ask to be done: of the coordinator, and of the own broker."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.broker.failover.coordinator import ElectionRecord
from quorumlog.broker.replication.roles import BrokerAddress, InSyncSet

# Of the coordinator. Any number may be under way; answers may come in any order.


class Read(NamedTuple):
    pass


class Grant(NamedTuple):
    ttl_ms: int


class Take(NamedTuple):
    revision: int
    record: ElectionRecord
    lease: int


class Change(NamedTuple):
    revision: int
    record: ElectionRecord
    lease: int


class Renew(NamedTuple):
    lease: int


class Revoke(NamedTuple):
    lease: int


Request = Read | Grant | Take | Change | Renew | Revoke


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
