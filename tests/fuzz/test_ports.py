"""Whatever a client says, no member ends, and the next client is served. QUORUMLOG_FUZZ: how many of
each message (`make fuzz`: 2,000)."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from harness.broker_process import BrokerProcess
from quorumlog import LocalCluster, connect
from quorumlog.broker import BrokerAdmin, Message
from quorumlog.broker import connect as connect_broker
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.config import KafkaOptions, TlsOptions
from quorumlog.kafka.endpoint import KafkaEndpoint
from quorumlog.kv import connect as connect_store
from quorumlog.kv.etcd.gateway import KEEP_ALIVE_PATH, PATHS, WATCH_PATH, EtcdGateway
from quorumlog.kv.testing import LocalStores
from quorumlog.net.tls import ClientTls, Tls
from quorumlog.server.free_ports import free_ports
from tests.certificates import directory, member, options_of
from tests.fuzz.kafka import said_to_kafka
from tests.fuzz.ports import (
    BROKER_GREETING,
    GRPC_GREETING,
    LOG_GREETING,
    STORE_GREETING,
    ha_greeting,
    old_store_frame,
    said_to_broker,
    said_to_gateway,
    said_to_grpc,
    said_to_log,
    said_to_master,
    said_to_store,
    say,
)
from tests.kv.etcd_grpc import EtcdCalls, EtcdPorts
from tests.waiting import eventually

COUNT = int(os.environ.get("QUORUMLOG_FUZZ", "6"))
SEED = int(os.environ.get("QUORUMLOG_FUZZ_SEED", "1"))

PLAIN_AND_TLS = pytest.mark.parametrize(
    "tls", [None, ClientTls(str(directory() / "ca.crt"))], ids=["plain", "TLS"]
)

pytestmark = pytest.mark.timeout(3600 if "QUORUMLOG_FUZZ" in os.environ else 120)


def tls_options(tls: ClientTls | None) -> Callable[[str], TlsOptions | None]:
    """Of members, for such a client."""
    return lambda member_id: None if tls is None else options_of(member(member_id))


def context_of(tls: ClientTls | None) -> ssl.SSLContext | None:
    return None if tls is None else tls.context


@pytest.fixture(autouse=True)
def _no_member_stops(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING)
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


def test_the_port_of_the_log() -> None:
    with LocalCluster(members=1) as cluster:
        say(cluster.servers, LOG_GREETING, said_to_log(Random(SEED), COUNT))
        say(cluster.servers, b"", said_to_log(Random(SEED + 1), 1), batch=1)
        assert cluster.running == ("n0",)
        with connect(cluster.servers) as log:
            index = log.append(b"after all that").first_index
            assert log.get(index).body == b"after all that"


def test_the_port_of_the_log_over_tls() -> None:
    """And below it: what is no TLS, and what begins like one."""
    tls = ClientTls(str(directory() / "ca.crt"))
    begins = (b"\x16\x03\x01" + each for each in said_to_log(Random(SEED + 2), 1))
    with LocalCluster(members=1, tls=lambda member_id: options_of(member(member_id))) as cluster:
        say(cluster.servers, LOG_GREETING, said_to_log(Random(SEED), COUNT), tls=tls.context)
        say(cluster.servers, b"", said_to_log(Random(SEED + 1), 1), batch=1)
        say(cluster.servers, b"", begins, batch=1)
        assert cluster.running == ("n0",)
        with connect(cluster.servers, tls=tls) as log:
            index = log.append(b"after all that").first_index
            assert log.get(index).body == b"after all that"


@PLAIN_AND_TLS
def test_the_port_of_the_key_value_store(tls: ClientTls | None) -> None:
    with LocalStores(1, tls=tls_options(tls)) as stores:
        say(stores.servers, STORE_GREETING, said_to_store(Random(SEED), COUNT), tls=context_of(tls))
        say(stores.servers, b"", said_to_store(Random(SEED + 1), 1), batch=1)
        assert stores.cluster.running == ("n0",)
        with connect_store(stores.servers, tls=tls) as kv:
            kv.put(b"key", b"after all that")
            assert kv[b"key"] == b"after all that"


def test_ten_bytes_do_not_end_a_member() -> None:
    """A greeting of an earlier release whose body is no array."""
    with LocalStores(1) as stores:
        say(stores.servers, b"", iter([old_store_frame(1, 0, b"\x05")]))
        with connect_store(stores.servers) as kv:
            assert kv.get(b"key") is None


def test_strangers_are_a_line_a_minute_and_a_store_on_loopback_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalStores(1) as stores:
        assert caplog.messages == []
        for address in (stores.servers, stores.cluster.servers):
            assert (
                say(address, b"", iter([b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] * 30), batch=1)
                == 30
            )
        closing = [said for said in caplog.messages if "closing the connection" in said]
        assert len(closing) == 1, closing


def test_the_port_of_etcds_grpc_api() -> None:
    with EtcdPorts(1) as stores:
        address = stores.addresses["n0"]
        say(address, GRPC_GREETING, said_to_grpc(Random(SEED), COUNT))
        say(address, b"", said_to_grpc(Random(SEED + 1), 1), batch=1)
        assert stores.cluster.running == ("n0",)
        with EtcdCalls(address) as etcd:
            etcd.put("key", "after all that")
            assert etcd.range("key").kvs[0].value == b"after all that"


class Gateway(LocalStores):
    """A store of one member, and etcd's gateway on it."""

    def __init__(self, tls: ClientTls | None) -> None:
        super().__init__(1, tls=tls_options(tls))
        self.gateway = f"127.0.0.1:{free_ports(1)[0]}"

    def _endpoints(self, member_id: str) -> list[Any]:
        (store,) = super()._endpoints(member_id)
        tls = self.tls_of(member_id)
        return [EtcdGateway(store, self.gateway, self.servers, member_id, tls=tls), store]


@PLAIN_AND_TLS
def test_the_port_of_etcds_gateway(tls: ClientTls | None) -> None:
    paths = [*PATHS, WATCH_PATH, KEEP_ALIVE_PATH, "/v3/nosuch"]
    with Gateway(tls) as stores:
        said = said_to_gateway(Random(SEED), COUNT, paths)
        say(stores.gateway, b"", said, batch=1, tls=context_of(tls))
        assert stores.cluster.running == ("n0",)
        with connect_store(stores.servers, tls=tls) as kv:
            kv.put(b"key", b"after all that")
            assert kv[b"key"] == b"after all that"


@PLAIN_AND_TLS
def test_the_port_of_kafkas_clients(tls: ClientTls | None) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = KafkaOptions(address)

    def endpoints(member_id: str) -> list[Any]:
        given = tls_options(tls)(member_id)
        own = None if given is None else Tls(given)
        return [KafkaEndpoint(options, member_id, {member_id: address}, tls=own)]

    with LocalCluster(members=1, endpoints=endpoints, tls=tls_options(tls)) as cluster:
        producer = {
            "bootstrap.servers": address,
            "security.protocol": "plaintext" if tls is None else "ssl",
            **({} if tls is None else {"ssl.ca.location": tls.files[0]}),
        }
        for topic in ("t", "after-all-that"):
            client = Producer(producer)
            client.produce(topic, b"it serves")
            assert client.flush(60) == 0
            said = said_to_kafka(Random(SEED), max(1, COUNT // 6))
            say(address, b"", said if topic == "t" else iter(()), tls=context_of(tls))
        assert cluster.running == ("n0",)


@pytest.mark.processes
@PLAIN_AND_TLS
def test_the_ports_of_a_master(tmp_path: Path, tls: ClientTls | None) -> None:
    """For its clients, and for its slaves, one of which may say that it leads no more: it lives."""
    random = Random(SEED)
    ha_port = free_ports(1)[0]
    role = ["--role", "async-master", "--id", "a", "--ha-port", str(ha_port)]
    if tls is not None:
        ca, (own, slave) = tls.files[0], (member("a"), member("fuzz"))
        role += ["--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-ca", ca]
        tls = ClientTls(ca, str(slave.cert), str(slave.key))
    context = context_of(tls)
    with BrokerProcess(tmp_path / "a", *role) as master:
        say(master.address, BROKER_GREETING, said_to_broker(random, COUNT), tls=context)
        with connect_broker(master.address, tls=tls) as client:
            assert client.send(Message("t", b"after all that")).topic == "t"
        ha_address = f"127.0.0.1:{ha_port}"
        say(ha_address, ha_greeting(random), said_to_master(random, COUNT), batch=2, tls=context)
        say(ha_address, b"", said_to_master(random, COUNT), batch=1, tls=context)
        with connect_broker(master.address, tls=tls) as client:
            assert client.status().role
        assert master.stop() == 0


@PLAIN_AND_TLS
def test_the_port_of_a_broker_on_the_log(tmp_path: Path, tls: ClientTls | None) -> None:
    groups = lambda member_id: GroupService()  # noqa: E731  # as LocalBrokers wants it
    folder = tmp_path / "log"
    with LocalBrokers(1, directory=folder, groups=groups, tls=tls_options(tls)) as brokers:
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with BrokerAdmin(brokers.servers, tls=tls) as admin:
            admin.create_topic("orders", 2)
        said = said_to_broker(Random(SEED), COUNT)
        say(brokers.servers, BROKER_GREETING, said, tls=context_of(tls))
        assert brokers.cluster.running == ("n0",)
        with connect_broker(brokers.servers, tls=tls) as client:
            assert client.send(Message("orders", b"after all that")).topic == "orders"
