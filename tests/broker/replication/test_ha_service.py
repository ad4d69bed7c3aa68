"""HAService on a real loop: what comes between two of its turns."""

from __future__ import annotations

import asyncio

import pytest

from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.protocol.slave_link import SlaveLink
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import BrokerAddress
from quorumlog.broker.replication.service.ha_service import HAService
from quorumlog.errors import ConfigError
from quorumlog.server.free_ports import free_ports
from quorumlog.testing.disk import SimDisk
from sim.replicas.machines import ROOT, Moments
from tests.broker.store.store_making import SMALL


def made_service(place: str) -> HAService:
    clock = Moments()
    store = ReplicaStore(ROOT, SMALL, disk=SimDisk(), wall_clock=clock, clock=clock, topics={"t": 1})
    return HAService(Replica(store, BrokerAddress("b", place, place), Role.SLAVE))


def test_a_port_that_is_taken_is_named() -> None:
    async def twice() -> None:
        place = f"127.0.0.1:{free_ports(1)[0]}"
        first, second = made_service(place), made_service(place)
        await first.start(lambda failure: None)
        try:
            with pytest.raises(ConfigError, match=r"another process uses the port: .* --ha-port"):
                await second.start(lambda failure: None)
        finally:
            first.stop()
            await asyncio.to_thread(first.join)

    asyncio.run(twice())


def test_a_slave_that_never_had_a_master_refuses_slaves_by_name() -> None:
    link = made_service("b:1")._link_to_slave("c", 0)
    asks = SlaveLink(made_service("c:1").replica.own_log(), 0, heartbeat_ms=1, silence_ms=1)
    link.feed(b"".join(asks.out), 0)
    assert link.closed == "broker b is not the master"
