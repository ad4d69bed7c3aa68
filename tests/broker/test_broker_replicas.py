"""Master and slaves as real processes: killed under load, switched by hand, followed by a client."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from quorumlog.broker import Message, SendReceipt, connect, connect_async
from quorumlog.broker.client.blocking import Producer
from quorumlog.broker.errors import (
    InSyncReplicasNotEnough,
    NeedsReplicatedRole,
    NotMaster,
    StaleEpoch,
)
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.errors import LedgerError
from quorumlog.server.free_ports import free_ports
from quorumlog.version import VERSION
from tests.broker.test_broker_processes import SMALL_FILES, send_until_lost
from tests.cli.conftest import Cli
from tests.waiting import eventually

pytestmark = [pytest.mark.processes]


def stored_by(receipt: SendReceipt) -> str:
    return f"127.0.0.1:{int.from_bytes(receipt.store_host[4:])}"


async def sent_by_a_task(servers: str) -> SendReceipt:
    async with connect_async(servers) as broker:
        return await broker.send(Message("t", b"later"))


def stored(address: str) -> list[str]:
    found: list[str] = []
    with connect(address) as broker:
        for queue in broker.queues("t"):
            at = queue.min_offset
            while at < queue.max_offset:
                pulled = broker.pull("t", queue.queue_id, at)
                found += [message.body.decode().strip() for message in pulled.messages]
                at = pulled.next_offset
    return found


def test_a_master_is_killed_under_load_and_a_slave_takes_over_and_nothing_is_lost(
    tmp_path: Path, cli: Cli
) -> None:
    ports = free_ports(3)
    brokers: dict[str, BrokerProcess] = {}
    for name, port in zip("abc", ports, strict=True):
        role = ["slave", "--master", f"127.0.0.1:{ports[0]}"] if brokers else ["sync-master"]
        given = ["--role", *role, "--id", name, "--ha-port", str(port), *SMALL_FILES]
        brokers[name] = BrokerProcess(tmp_path / name, *given)
    a, b, c = brokers.values()
    with ExitStack() as stack:
        for process in brokers.values():
            stack.push(process)
        a.start()
        with connect(a.address) as master:
            with pytest.raises(InSyncReplicasNotEnough, match="1 of 2 required copies in sync"):
                master.send(Message("t", b"alone"), queue_id=0)
            b.start()
            eventually(lambda: [s.counts for s in master.replica().slaves] == [True])
            c.start()
            eventually(lambda: "list: 2 copies of a, b" in cli_status(cli, a))
            eventually(lambda: "c" in {s.id for s in master.replica().slaves if s.is_caught_up})
            added = cli("broker", "add", "--servers", b.address, "--broker", "c")
            assert added.stdout == "acknowledged messages are on 2 of a, b, c\n", added.output
            eventually(lambda: [s.counts for s in master.replica().slaves] == [True, True])
        with connect(b.address) as slave, pytest.raises(NotMaster, match=f"send to {a.address}"):
            slave.send(Message("t", b"to a slave"), queue_id=0)
        sent, acknowledged = list[str](), list[str]()
        sender = threading.Thread(target=send_until_lost, args=(a.address, "x", sent, acknowledged))
        sender.start()
        everybody = ",".join(process.address for process in brokers.values())
        client = stack.enter_context(connect(everybody))
        assert stored_by(client.send(Message("t", b"to whoever is master"))) == a.address
        eventually(lambda: len(acknowledged) > 200)
        a.kill()
        sender.join()

        # The one with less is refused, unless both have the same: once all that came is written.
        offsets = {}
        for name, process in (("b", b), ("c", c)):
            with connect(process.address) as slave:
                eventually(lambda: "no master at" in slave.replica().problem)
                eventually(lambda: (now := slave.replica()).flushed_offset == now.max_offset)
                offsets[name] = slave.replica().flushed_offset
        best = max(offsets, key=lambda name: offsets[name])
        other = "bc".replace(best, "")
        if offsets["b"] != offsets["c"]:
            refused = cli("broker", "switch", "--servers", b.address, "--to", other)
            assert refused.exit_code == 1
            assert f"--to {best}" in refused.output
        done = cli("broker", "switch", "--servers", b.address, "--to", best, "--json")
        report = json.loads(done.stdout)
        assert report["lost"] is None, done.output
        assert report["followers"] == [other]
        address = brokers[best].address
        # The client finds the new master by itself.
        assert stored_by(client.send(Message("t", b"after"))) == address
        with connect(brokers[other].address) as slave, connect(address) as master:
            eventually(lambda: slave.max_offset("t", 0) == master.max_offset("t", 0))
        assert set(acknowledged) <= set(stored(address)), "an acknowledged message is lost"

        # The old master comes back as what it was: nobody follows it, and it takes nothing.
        a.start()
        with connect(a.address) as old, pytest.raises((InSyncReplicasNotEnough, StaleEpoch)):
            old.send(Message("t", b"nobody's"), queue_id=0)
        # Clients that meet it first are led on by a slave, to the master that nobody has named to them.
        a_few = f"{a.address},{brokers[other].address}"
        with connect(a_few) as late:
            assert stored_by(late.send(Message("t", b"late"))) == address
        assert stored_by(asyncio.run(sent_by_a_task(a_few))) == address
        told = cli("broker", "switch", "--servers", a.address, "--to", "a", "--timeout", "0.1")
        assert told.exit_code == 1
        assert f"first make it follow with --to {best}" in told.output
        moved = cli("broker", "switch", "--servers", address, "--to", other, "--json")
        assert json.loads(moved.stdout)["lost"] is None, moved.output
        assert stored_by(client.send(Message("t", b"moved"))) == brokers[other].address
        eventually(lambda: f"slave {best}: connected, counts" in cli_status(cli, brokers[other]))
        status = cli_status(cli, brokers[other])
        assert f"broker {other}: SYNC_MASTER in epoch 3" in status
        for name, role in ((other, "SYNC_MASTER +3"), (best, "SLAVE +-")):
            assert re.search(rf"^{name} +127.0.0.1:[0-9]+ +{role} ", status, re.MULTILINE), status
        both = f"{brokers[other].address},{brokers[best].address},127.0.0.1:1"
        status = cli("broker", "status", "--servers", both).stdout
        for row_of in (rf"{best} +127.0.0.1:[0-9]+ +SLAVE +3 +", "- +127.0.0.1:1 +not reached"):
            assert re.search(rf"^{row_of}", status, re.MULTILINE), status
        status = cli_status(cli, brokers[other])
        assert "list: 2 copies of a, b, c" in status
        row = json.loads(cli("broker", "status", "--servers", brokers[other].address, "--json").stdout)
        (slave_row,) = [each for each in row["replica"]["slaves"] if each["id"] == best]
        assert (slave_row["lag_bytes"], slave_row["is_connected"]) == (0, True)
        assert (slave_row["release"], f"release {VERSION}" in status) == (VERSION, True)
        assert f", release {VERSION}, " in cli_status(cli, brokers[best]), "of its master"

        # One after the other is lost, and the list with it.
        eventually(
            lambda: cli_status(cli, brokers[other]).count("connected, counts, on its disk up to") == 2
        )
        assert brokers[best].stop() == 0
        eventually(lambda: "away" in cli_status(cli, brokers[other]))
        slip = cli("broker", "remove", "--servers", a.address, "--broker", "z")
        assert (slip.exit_code, "no broker z is on the list" in slip.output) == (1, True), slip.output
        left = cli("broker", "remove", "--servers", a.address, "--broker", best)
        ids = ", ".join(sorted(["a", other]))
        assert left.stdout == f"acknowledged messages are on 2 of {ids}\n", left.output
        eventually(lambda: "connected, counts" in cli_status(cli, brokers[other]))
        a.kill()
        copies_1 = ("broker", "copies", "1", "--servers", brokers[other].address)
        refused = cli(*copies_1, "--timeout", "0.1")
        assert refused.exit_code == 1
        assert "are in sync, and the change needs 2" in refused.output
        at = ("broker", "switch", "--servers", brokers[other].address, "--to", other)
        assert "needs --unsafe" in cli(*at, "--without", "a").output
        alone = cli(*at, "--without", "a", "--unsafe")
        assert alone.exit_code == 0, alone.output
        assert f"{other} is the master of epoch " in alone.output
        assert client.send(Message("t", b"alone"), queue_id=0)
    with OfflineStore(str(tmp_path / best)) as store:
        assert store.verify()["problems"] == []


def cli_status(cli: Cli, process: BrokerProcess) -> str:
    return cli("broker", "status", "--servers", process.address).stdout


def test_a_replicated_directory_is_not_served_without_a_role(tmp_path: Path, cli: Cli) -> None:
    (port,) = free_ports(1)
    options = ("--role", "async-master", "--id", "a", "--ha-port", str(port), *SMALL_FILES)
    with BrokerProcess(tmp_path / "store", *options) as process, connect(process.address) as broker:
        broker.send(Message("t", b"1"), queue_id=0)  # waits for no slave
        assert process.stop() == 0
    at = ("broker", "serve", "--dir", str(tmp_path / "store"), "--topics", "t", *SMALL_FILES)
    refused = cli(*at)
    assert refused.exit_code != 0
    assert "start it with --role" in refused.output
    renamed = cli(*at, "--role", "async-master", "--id", "b", "--ha-port", str(port))
    assert "is the store of broker a" in renamed.output
    assert not (tmp_path / "store" / "abort").exists()
    for given, why in (
        (("--role", "slave"), "needs --master"),
        (("--role", "async-master", "--master", "h:1"), "is for --role slave"),
        (("--id", "b"), "need a --role"),
        (("--role", "async-master", "--bind", "0.0.0.0:9"), "and it is not reachable"),
    ):
        assert why in cli(*at, *given).output
    # What is refused for a slip has bound no store to an id.
    of_etcd = ("--failover", "etcd", "--coordinator", "10.0.0.7:2379")
    new = ("broker", "serve", "--dir", str(tmp_path / "new"), "--topics", "t")
    for given, why in (
        (of_etcd[:2], "needs --coordinator"),
        ((*of_etcd, "--group", "a/b"), "--group 'a/b'"),
        ((*of_etcd, "--lease-ms", "5"), "lease_ms must be"),
        ((*of_etcd[:3], "10.0.0.7"), "10.0.0.7"),
        (("--failover", "kv", "--coordinator", "h:1,x"), "'x' is not an address"),
        (("--role", "slave", "--master", "h"), "'h' is not an address"),
        (("--ha-dialect", "rocketmq"), "need a --role"),
    ):
        slip = cli(*new, *given)
        assert (slip.exit_code, why in slip.output) == (2, True), slip.output
        assert not (tmp_path / "new").exists(), given


def test_what_is_no_error_of_the_switch_is_told(tmp_path: Path, cli: Cli) -> None:
    with BrokerProcess(tmp_path / "store", *SMALL_FILES) as process:
        refused = cli("broker", "switch", "--servers", process.address, "--to", "b")
        assert refused.exit_code == 1
        assert "start it with quorumlog broker serve --role" in refused.output
        with connect(process.address) as broker, pytest.raises(LedgerError, match="neither master"):
            broker.replica()
        with (
            Producer(process.address, idempotent=True) as producer,
            pytest.raises(NeedsReplicatedRole, match="--role dledger"),
        ):
            producer.send(Message("t", b"in a session"))
