"""HAService on a real loop: what comes between two of its turns."""

from __future__ import annotations

import asyncio

from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import BrokerAddress
from quorumlog.broker.replication.service.ha_service import HAService
from quorumlog.server.free_ports import free_ports
from quorumlog.testing.disk import SimDisk
from tests.broker.replication.replica_world import ROOT, Moments
from tests.broker.store.store_making import SMALL


def test_a_slave_that_is_accepted_and_not_connected_yet_does_not_end_the_clock_of_its_master() -> None:
    async def ticked() -> None:
        clock = Moments()
        store = ReplicaStore(ROOT, SMALL, disk=SimDisk(), wall_clock=clock, clock=clock, topics={"t": 1})
        place = f"127.0.0.1:{free_ports(1)[0]}"
        service = HAService(Replica(store, BrokerAddress("a", place, place), Role.SYNC_MASTER))
        await service.start(lambda failure: None)
        try:
            service._accepted()
            service._tick()
        finally:
            service.stop()
            await asyncio.to_thread(service.join)

    asyncio.run(ticked())


def test_a_slave_that_never_had_a_master_refuses_slaves_by_name() -> None:
    clock = Moments()
    store = ReplicaStore(ROOT, SMALL, disk=SimDisk(), wall_clock=clock, clock=clock, topics={"t": 1})
    service = HAService(Replica(store, BrokerAddress("b", "b:1", "b:2"), Role.SLAVE))
    assert service._link_to_slave("c", 0).closed == "broker b is not the master"
