"""Brokers of an earlier release beside brokers of this one, as while a group is upgraded one by one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from harness.etcd_cluster import etcd_of_three
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

CLIENT = """
import json, sys
from quorumlog.broker import Message, connect
for line in sys.stdin:
    address, body = json.loads(line)
    try:
        with connect(address) as broker:
            if body:
                broker.send(Message("t", body.encode()), queue_id=0)
            found = broker.replica()
            counted = sum(each.counts for each in found.slaves)
            print(json.dumps([found.role, found.max_offset, counted]), flush=True)
    except Exception as error:
        print(json.dumps([repr(error)]), flush=True)
"""
"""Of either release: asks a broker what it is, behind a message or without one."""

LITTLE = ("--flush", "sync", "--option", "slave_timeout=10000")


def said(package: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """By the command line of this release, or of that in a folder."""
    environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
    return subprocess.run(
        [sys.executable, "-m", "quorumlog.cli.main", "broker", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


class Group:
    """Three brokers, all of the earlier release; `a` is the master."""

    def __init__(self, folder: Path, earlier: Path, *options: str) -> None:
        self.earlier = earlier
        self.old = set("abc")
        self._stack = ExitStack()
        self._clients = {package: self._client(package) for package in (None, earlier)}
        self.acknowledged: list[str] = []
        self.brokers: dict[str, BrokerProcess] = {}
        ports = dict(zip("abc", free_ports(3), strict=True))
        for name, port in ports.items():
            role = ["--role", "slave", "--master", f"127.0.0.1:{ports['a']}"]
            given = options or (["--role", "sync-master"] if name == "a" else role)
            broker = BrokerProcess(
                folder / name, *given, "--id", name, "--ha-port", str(port), *LITTLE, topics="t:2"
            )
            broker.run_package(earlier)
            self.brokers[name] = broker

    def _client(self, package: Path | None) -> subprocess.Popen[str]:
        environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
        return self._stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CLIENT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )

    def asked(self, name: str, body: str = "") -> list[object]:
        """Role and end of a broker, and how many slaves count; or why it does not say it."""
        client = self._clients[self.package_of(name)]
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps([self[name].address, body]) + "\n")
        client.stdin.flush()
        found: list[object] = json.loads(client.stdout.readline())
        return found

    def __enter__(self) -> Group:
        for broker in self.brokers.values():
            broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.__exit__()
        for client in self._clients.values():
            client.kill()
        self._stack.close()

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    def package_of(self, name: str) -> Path | None:
        return self.earlier if name in self.old else None

    def upgrade(self, name: str) -> None:
        if self[name].is_running:
            self[name].stop()
        self[name].run_package(None)
        self[name].start()
        self.old.discard(name)

    def send(self, master: str) -> None:
        """One message, which is acknowledged once the master is there and has enough copies."""
        body = f"message {len(self.acknowledged)}"
        eventually(
            lambda: len(self.asked(master, body)) == 3, what=f"a message that {master} acknowledges"
        )
        self.acknowledged.append(body)

    @property
    def counts_all(self) -> bool:
        records = [
            json.loads((broker.folder / "replica").read_text()) for broker in self.brokers.values()
        ]
        return all(len(each["counted"]) == 2 and not each["joining"] for each in records)

    def master(self) -> str:
        """Who says that it is, of those that answer."""

        def find() -> str | None:
            names = [name for name, broker in self.brokers.items() if broker.is_running]
            leading = [n for n in names if str(self.asked(n)[0]).endswith("_MASTER")]
            return leading[0] if len(leading) == 1 else None

        return eventually(find, what="a master")

    def check(self, name: str) -> None:
        """Everything that was acknowledged is in this directory, once it is stopped."""
        assert self[name].stop() == 0
        lines = said(None, "dump", str(self[name].folder), "--json").stdout.splitlines()
        held = [json.loads(line)["body"] for line in lines]
        assert set(self.acknowledged) <= set(held), (name, self.acknowledged, held)
        assert said(None, "verify", str(self[name].folder)).returncode == 0


@pytest.fixture
def group(tmp_path: Path, earlier: Path) -> Iterator[Group]:
    with Group(tmp_path, earlier) as group:
        eventually(lambda: group.counts_all, what="two slaves that count, as all have noted")
        yield group


@pytest.mark.parametrize("is_switched", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_group_is_upgraded_one_broker_at_a_time_slaves_first(group: Group, is_switched: bool) -> None:
    group.send("a")
    for name, other in (("b", "c"), ("c", "b")):
        group.upgrade(name)
        group.send("a")
        group[other].stop()
        group.send("a")  # by the new slave alone
        group[other].start()
        group.send("a")
    master = "a"
    if is_switched:  # the old one is not understood, and so is one that is lost
        done = said(None, "switch", "--servers", group["b"].address, "--to", "b")
        assert "not reached: a" in done.stdout, done
        master = "b"
        group.send("b")
    group.upgrade("a")
    if is_switched:
        assert said(None, "switch", "--servers", group["b"].address, "--to", "b").returncode == 0
    group.send(master)
    status = said(None, "status", "--servers", group[master].address).stdout
    assert "2 copies of a, b, c" in status, status
    group[master].kill()
    left = [name for name in "abc" if name != master]
    at = ("switch", "--servers", group[left[0]].address, "--to")

    def find() -> str | None:
        return next((name for name in left if said(None, *at, name).returncode == 0), None)

    group.send(eventually(find, what="another master"))
    for name in left:
        group.check(name)


def test_a_slave_of_the_release_before_counts_for_a_new_master_until_a_switch(group: Group) -> None:
    group.send("a")
    group.upgrade("a")
    group.send("a")
    group["b"].stop()
    group.send("a")  # by one of the release before alone
    for words in (("copies", "3"), ("remove", "--broker", "c")):
        refused = said(None, *words, "--servers", group["a"].address)
        assert "broker c is of the release before" in refused.stderr, refused
    group.upgrade("b")
    group.send("a")
    done = said(None, "switch", "--servers", group["a"].address, "--to", "b")
    assert "not reached: c" in done.stdout, done
    group.send("b")  # which c does not follow any more
    group.upgrade("c")
    assert said(None, "switch", "--servers", group["b"].address, "--to", "b").returncode == 0
    group["a"].stop()
    group.send("b")
    for name in "bc":
        group.check(name)


@pytest.mark.ship
def test_a_group_goes_back_with_the_directory_of_its_master(group: Group) -> None:
    """As docs/operations.md has it."""
    group.send("a")
    for name in "bca":
        group.upgrade(name)
        group.send("a")
    for name in "bca":
        group[name].stop()
    (group["a"].folder / "replica").unlink()
    for name in "bc":
        shutil.rmtree(group[name].folder)
    for name in "abc":
        group[name].run_package(group.earlier)
        group[name].start()
        group.old.add(name)
    eventually(lambda: group.counts_all, what="two slaves that count again")
    group.send("a")
    for name in "abc":
        group.check(name)


@pytest.mark.long
def test_a_group_with_a_coordinator_is_upgraded_one_broker_at_a_time(
    tmp_path: Path, earlier: Path
) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_of_three(tmp_path / "etcd"))
        options = ("--failover", "etcd", "--coordinator", etcd.servers, "--lease-ms", "2000")
        group = stack.enter_context(Group(tmp_path, earlier, *options))
        for _ in range(3):
            old = group.master()
            group.send(old)
            slave = next(name for name in sorted(group.old) if name != old or len(group.old) == 1)
            group.upgrade(slave)
            group.send(group.master())
            group[group.master()].kill()
            for broker in group.brokers.values():
                if not broker.is_running:
                    group.send(group.master())
                    broker.start()
            group.send(group.master())
        last = group.master()

        def is_copied() -> bool:
            return len({tuple(group.asked(name)[1:2]) for name in "abc"}) == 1

        eventually(is_copied, what="three copies")
        for name in sorted("abc", key=lambda each: each == last):
            group.check(name)
