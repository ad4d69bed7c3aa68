"""HAService on a real loop: what comes between two of its turns."""

from __future__ import annotations

import asyncio
import contextlib
import errno

import pytest

from quorumlog.broker.epochs import Peer
from quorumlog.broker.message import Message, PutMessageResult, encode_records
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.replication.ha_service import QUORUMLOG, ROCKETMQ, HAService
from quorumlog.broker.replication.links import SlaveLink
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.store.log_files import BrokerRole, PutOutcome, PutRequest
from quorumlog.errors import ConfigError
from quorumlog.net.limits import GREETING_MS
from quorumlog.server.free_ports import free_ports
from quorumlog.testing.disk import SimDisk
from sim.replicas.machines import ROOT, Moments
from tests.broker.store.store_making import SMALL


def made_service(
    place: str, role: BrokerRole = BrokerRole.SLAVE, dialect: str = QUORUMLOG, name: str = "b"
) -> HAService:
    clock = Moments()
    store = ReplicaStore(ROOT, SMALL, disk=SimDisk(), wall_clock=clock, clock=clock, topics={"t": 1})
    return HAService(BrokerReplica(store, Peer(id=name, address=place, ha_address=place), role), dialect)


def test_a_port_that_is_taken_is_named() -> None:
    async def twice() -> None:
        place = f"127.0.0.1:{free_ports(1)[0]}"
        first, second = made_service(place), made_service(place)
        await first.start(lambda failure: None, lambda: None)
        try:
            with pytest.raises(ConfigError, match=r"another process uses the port: .* --ha-port"):
                await second.start(lambda failure: None, lambda: None)
        finally:
            first.stop()
            await asyncio.to_thread(first.join)

    asyncio.run(twice())


def test_a_slave_turns_to_its_new_master_also_while_it_dials_one_that_is_gone() -> None:
    """Whose machine has lost its power: it answers nothing at all."""

    async def scene() -> None:
        service = made_service(f"127.0.0.1:{free_ports(1)[0]}")
        loop, dialled = asyncio.get_running_loop(), asyncio.Queue[str]()

        async def dial(make: object, host: str, port: int, ssl: object) -> None:
            dialled.put_nowait(host)
            await asyncio.Event().wait()

        loop.create_connection = dial  # type: ignore[assignment, method-assign]
        await service.start(lambda failure: None, lambda: None)
        for host in ("gone", "new"):
            service.replica.become_slave(1, Peer(id=host, ha_address=f"{host}:1"))
            async with asyncio.timeout(60):
                assert await dialled.get() == host
        service.stop()
        await asyncio.to_thread(service.join)

    asyncio.run(scene())


def test_what_a_slave_lacks_and_cannot_be_read_ends_its_connection_and_no_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        place = f"127.0.0.1:{free_ports(1)[0]}"
        service = made_service(place, BrokerRole.ASYNC_MASTER)
        await service.start(lambda failure: None, lambda: None)
        host, port = place.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting(QUORUMLOG)[:1])
        async with asyncio.timeout(60):
            while not service.connections:
                await asyncio.sleep(0)
        (slave,) = service.connections
        slave.link.next_offset = 0
        message_log, told = service.replica.store.commit_log, list[PutOutcome]()
        monkeypatch.setattr(message_log.files, "pread", unreadable)
        records = RecordBatch.contiguous(*encode_records([Message("t", b"x")], 0, 0))
        message_log.put([PutRequest(records, False, told.append)])
        assert [type(each) for each in told] == [PutMessageResult]
        assert "cannot be read" in slave.link.closed
        writer.close()
        service.stop()
        await asyncio.to_thread(service.join)

    def unreadable(size_bytes: int, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    asyncio.run(scene())


def test_a_slave_that_never_had_a_master_refuses_slaves_by_name() -> None:
    link = made_service("b:1")._link_to_slave("c", 0)
    asks = SlaveLink(made_service("c:1").replica.own_log(), 0, heartbeat_ms=1, silence_ms=1)
    link.feed(b"".join(asks.out), 0)
    assert link.closed == "broker b is not the master"


def test_a_slave_with_another_certificate_is_refused_and_its_promise_is_not_heard() -> None:
    """It has promised a higher epoch, for which a master gives up."""
    master = made_service("b:1", BrokerRole.ASYNC_MASTER)
    link = master._link_to_slave("c", 0, lambda slave_id: f"no certificate of {slave_id}")
    asks = SlaveLink(made_service("c:1", name="c").replica.own_log(), 0, heartbeat_ms=1, silence_ms=1)
    link.feed(b"".join(asks.out), 0)
    link.feed(b"", 0)
    assert link.closed == "this is not broker c: no certificate of c"
    assert master.replica.is_leading


def greeting(dialect: str) -> bytes:
    asks = made_service("c:1", dialect=dialect, name="c")._link_to_master(0)
    return b"".join(asks.out)


@pytest.mark.parametrize("dialect", [QUORUMLOG, ROCKETMQ])
@pytest.mark.parametrize("kept_back_bytes", [0, 1])
def test_a_slave_has_said_its_whole_greeting_in_time_or_is_closed(
    dialect: str, kept_back_bytes: int
) -> None:
    said = greeting(dialect)

    async def scene() -> None:
        place = f"127.0.0.1:{free_ports(1)[0]}"
        service = made_service(place, BrokerRole.ASYNC_MASTER, dialect)
        loop = asyncio.get_running_loop()
        await service.start(lambda failure: None, lambda: None)
        host, port = place.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(said[: len(said) - kept_back_bytes])
        listener = service.listener
        while not listener.connections:
            await asyncio.sleep(0)
        (connection,) = listener.connections.values()
        assert connection.is_client == bool(kept_back_bytes)
        real = loop.time
        loop.time = lambda: real() + (GREETING_MS + 1) / 1000  # type: ignore[method-assign]
        for _ in range(100):
            await asyncio.sleep(0)
        assert connection.closed == bool(kept_back_bytes)
        writer.close()
        service.stop()
        await asyncio.to_thread(service.join)

    # Its clock can be set: uvloop's cannot.
    with contextlib.closing(asyncio.SelectorEventLoop()) as loop:
        loop.run_until_complete(asyncio.wait_for(scene(), 30))
