"""Users of classic brokers, as real processes: named on a master, in force on its slaves, kept over a
switch."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from quorumlog.broker import BrokerAdmin, BrokerClient, Message, connect
from quorumlog.errors import Forbidden, LedgerError, NotAuthenticated
from quorumlog.net.credentials import ClientUser
from quorumlog.server.free_ports import free_ports
from tests.broker.test_broker_processes import SMALL_FILES
from tests.cli.conftest import Cli
from tests.waiting import eventually

pytestmark = [pytest.mark.processes]

ALICE, BOB = ClientUser("alice", "sesame"), ClientUser("bob", "tahini")
HEARTBEAT = ("--option", "ha_send_heartbeat_interval=300")


def test_users_are_in_force_on_master_and_slaves_and_outlive_a_switch(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(2)
    brokers = [
        BrokerProcess(
            tmp_path / name,
            *("--role", *role, "--id", name, "--ha-port", str(port), *SMALL_FILES, *HEARTBEAT),
        )
        for name, port, role in zip(
            "ab", ports, (["sync-master"], ["slave", "--master", f"127.0.0.1:{ports[0]}"]), strict=True
        )
    ]
    a, b = brokers
    servers = f"{a.address},{b.address}"
    passwords = {"alice": "sesame", "bob": "tahini"}

    def done(*words: str, new: str = "", by: str = "") -> str:
        for name, value in (("QUORUMLOG_NEW_PASSWORD", new), ("QUORUMLOG_PASSWORD", by)):
            monkeypatch.setenv(name, passwords.get(value, ""))
        user = ["--user", by] if by else []
        ran = cli(*words, "--servers", servers, *user)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    with ExitStack() as stack:
        for process in brokers:
            stack.push(process)
            process.start()
        with connect(servers) as broker:
            eventually(lambda: [s.counts for s in broker.replica().slaves] == [True])
            for body in (b"one", b"two"):
                broker.send(Message("t", body), queue_id=0)
        done("user", "add", "alice", "--role", "admin", new="alice")
        done("role", "add", "readers", by="alice")
        done("grant", "readers", "read", "topic", "t", by="alice")
        done("user", "add", "bob", "--role", "readers", new="bob", by="alice")
        assert "bob" in done("who-can", "read", "topic", "t", by="alice")
        with pytest.raises(NotAuthenticated), connect(a.address) as nobody:
            nobody.pull("t", 0, 0)
        with connect(b.address, user=BOB) as slave:
            eventually(lambda: len(slave.pull("t", 0, 0).messages) == 2)
            with pytest.raises(Forbidden, match="user bob may not"):
                slave.queues()
        a.kill()

        def is_unknown() -> bool:
            try:
                with connect(b.address, user=BOB, timeout_ms=2_000) as slave:
                    slave.pull("t", 0, 0)
            except LedgerError:
                return True
            return False

        eventually(is_unknown)
        bare = cli("broker", "status", "--servers", b.address, "--timeout", "1")
        assert "users: unknown" in bare.stdout, bare.output
        done("broker", "switch", "--to", "b", by="alice")
        a.start()
        with BrokerAdmin(servers, user=ALICE) as admin:
            assert [each.name for each in admin.users().users] == ["alice", "bob"]
        with connect(servers, user=BOB) as broker:
            eventually(lambda: len(broker.pull("t", 0, 0).messages) == 2)


def test_the_first_administrator_is_left_in_the_directory_of_a_stopped_master(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", "sesame")
    limits = tmp_path / "broker.toml"
    limits.write_text("[limits]\nuser_connections = 1\n")
    folder = tmp_path / "a"
    with BrokerProcess(folder, "--config", str(limits)) as alone:
        with connect(alone.address) as broker:
            broker.send(Message("t", b"one"), queue_id=0)
        alone.stop()
        assert cli("init-admin", str(folder), "alice").exit_code == 0
        alone.start()
        with BrokerAdmin(alone.address, user=ALICE) as admin:
            eventually(lambda: not (folder / "admin-bootstrap").exists())
            assert [each.name for each in admin.users().users] == ["alice"]
            with pytest.raises(LedgerError, match="user_connections is 1"):
                connect(alone.address, user=ALICE, timeout_ms=1_000)
        with pytest.raises(NotAuthenticated), connect(alone.address) as nobody:
            nobody.pull("t", 0, 0)
        alone.stop()
        assert cli("init-admin", str(folder), "eve").exit_code == 0
        alone.start()
        with connect(alone.address, user=ALICE) as broker:
            eventually(lambda: "eve does not become" in str(broker.status().problems))
            assert broker.status().users == "on"
        alone.stop()
        alone.start()
    options = ("--role", "slave", "--id", "s", "--master", "127.0.0.1:1", *SMALL_FILES)
    with BrokerProcess(tmp_path / "s", *options) as slave:
        slave.stop()
    refused = cli("init-admin", str(tmp_path / "s"), "alice")
    assert "do it in the directory of its master" in refused.output
    (tmp_path / "s" / "users").write_text("heard\n")  # and its master was lost before it had any
    refused = cli("init-admin", str(tmp_path / "s"), "alice", "--reset")
    assert "do it in the directory of its master" in refused.output
    assert cli("init-admin", str(tmp_path / "s"), "alice").exit_code == 0
    with slave.start():
        switch = ("broker", "switch", "--servers", slave.address, "--to", "s", "--unsafe")
        assert cli(*switch).exit_code == 1
        monkeypatch.setenv("QUORUMLOG_PASSWORD", "sesame")
        switched = cli(*switch, "--user", "alice")
        assert "s is the master" in switched.output, switched.output
        with BrokerAdmin(slave.address, user=ALICE) as admin:
            eventually(lambda: not (tmp_path / "s" / "admin-bootstrap").exists())
            assert [each.name for each in admin.users().users] == ["alice"]


def test_users_are_changed_while_another_broker_of_the_list_is_down(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", "sesame")
    with BrokerProcess(tmp_path / "a") as broker:
        servers = f"127.0.0.1:{free_ports(1)[0]},{broker.address}"
        added = cli("user", "add", "alice", "--role", "admin", "--servers", servers)
        assert added.output == "alice is a user\n"


def test_a_switch_by_force_opens_no_broker_while_one_that_refuses_all_alike_has_users(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c was down when users came, the master is lost, and b, which has not heard it, refuses the switch
    without a word of users but in its bare status."""
    ports = free_ports(3)
    master = ("--master", f"127.0.0.1:{ports[0]}")
    a, b, c = (
        BrokerProcess(
            tmp_path / name,
            *("--role", *role, "--id", name, "--ha-port", str(port), *SMALL_FILES, *HEARTBEAT),
        )
        for name, port, role in zip(
            "abc", ports, (["sync-master"], ["slave", *master], ["slave", *master]), strict=True
        )
    )

    def has_one(slave: BrokerClient) -> bool:
        return len(slave.pull("t", 0, 0).messages) == 1

    monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", "sesame")
    with ExitStack() as stack:
        for process in (a, b, c):
            stack.push(process)
        a.start()
        b.start()
        with connect(a.address) as broker:
            eventually(lambda: [s.counts for s in broker.replica().slaves] == [True])
            broker.send(Message("t", b"one"), queue_id=0)
        c.start()
        with connect(c.address) as slave:
            eventually(partial(has_one, slave))
        listed = cli("broker", "add", "--servers", a.address, "--broker", "c")
        assert listed.exit_code == 0, listed.output
        eventually(lambda: "a, b, c" in cli("broker", "status", "--servers", c.address).stdout)
        c.kill()
        added = cli("user", "add", "alice", "--role", "admin", "--servers", a.address)
        assert added.exit_code == 0, added.output
        with connect(b.address, user=ALICE) as slave:
            eventually(partial(has_one, slave))
        a.kill()
        c.start()
        bare = ("broker", "status", "--servers", b.address, "--timeout", "1")
        eventually(lambda: "users: unknown" in cli(*bare).stdout)
        switch = ("broker", "switch", "--servers", c.address, "--to", "c", "--unsafe")
        switched = cli(*switch, "--without", "a", "--without", "b")
        assert "there may be users" in switched.output, switched.output
        with pytest.raises(NotAuthenticated), connect(c.address) as nobody:
            nobody.pull("t", 0, 0)
