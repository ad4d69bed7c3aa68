"""A group is upgraded one member at a time, and goes back, while it is written to: nothing is lost, and
nobody waits for two seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.etcd_cluster import etcd_of_three
from harness.member_processes import SERVE, MemberProcesses
from quorumlog import connect
from quorumlog.server.free_ports import free_ports
from tests.system.test_rolling_brokers import Group
from tests.system.test_rolling_upgrades import NEW, OLD, RETENTION, let_lead, row_of
from tests.waiting import eventually, wait_until_identical

pytestmark = [pytest.mark.ship, pytest.mark.processes, pytest.mark.timeout(600)]

MOST_SILENT_S = 2.0
STEADY = 200
"""Acknowledgements behind each step, before the next one."""

APPENDS = """
import itertools, json, sys, time
from quorumlog import connect
from quorumlog.errors import LedgerError
servers, name = sys.argv[1:]
with connect(servers) as log:
    for number in itertools.count():
        body = f"{name} {number}"
        try:
            index = log.append(body.encode()).last_index
        except LedgerError as error:
            print(json.dumps([time.time(), None, repr(error)]), flush=True)
        else:
            print(json.dumps([time.time(), index, body]), flush=True)
"""

PUTS = """
import json, sys, time
from quorumlog import kv
from quorumlog.errors import LedgerError
servers, name = sys.argv[1:]
number = 0
while True:
    try:
        with kv.connect(servers) as store:
            while True:
                key, value = f"{name}/{number}", f"{number} {'x' * 500}"
                store.put(key, value)
                print(json.dumps([time.time(), key, value]), flush=True)
                number += 1
    except LedgerError as error:
        print(json.dumps([time.time(), None, repr(error)]), flush=True)
        time.sleep(0.02)
"""
"""A client that meets a member of the other release goes, and looks for one of its own."""

GETS = """
import json, sys
from quorumlog import kv
servers = sys.argv[1]
with kv.connect(servers) as store:
    found = {key: store.get(key) for key in json.load(sys.stdin)}
    print(json.dumps({key: each.value.decode() for key, each in found.items() if each}))
"""

SENDS = """
import json, sys, time
from quorumlog.broker import Message, connect
from quorumlog.errors import LedgerError
servers, name = sys.argv[1:]
number = 0
while True:
    try:
        with connect(servers) as broker:
            while True:
                body, number = f"{name} {number} {'x' * 500}", number + 1
                sent = broker.send(Message("t", body.encode()), queue_id=int(name[-1]))
                place = f"{sent.queue_id}/{sent.queue_offset}"
                print(json.dumps([time.time(), place, body]), flush=True)
    except LedgerError as error:
        print(json.dumps([time.time(), None, repr(error)]), flush=True)
        time.sleep(0.02)
"""

TOPICS = """
import itertools, json, sys, time
from quorumlog.broker import BrokerAdmin
servers, name = sys.argv[1:]
with BrokerAdmin(servers) as brokers:
    for number in itertools.count():
        brokers.create_topic(f"{name}-{number}", 1)
        print(json.dumps([time.time(), number, name]), flush=True)
"""
"""The log is kept for this machine, too, which is saved once it has executed enough commands."""

PULLS = """
import json, sys
from quorumlog.broker import connect
servers, found = sys.argv[1], {}
with connect(servers) as broker:
    for queue in broker.queues("t"):
        offset = queue.min_offset
        while offset < queue.max_offset:
            pulled = broker.pull("t", queue.queue_id, offset)
            offset = pulled.next_offset
            for each in pulled.messages:
                found[f"{queue.queue_id}/{each.queue_offset}"] = each.body.decode()
print(json.dumps(found))
"""


class Load:
    """Programs of either release, which write until the end; what was acknowledged, and when."""

    def __init__(self, program: str, servers: str, packages: Sequence[Path | None]) -> None:
        self.acknowledged: dict[int | str, str] = {}
        self.times: list[float] = []
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._program, self._servers, self._packages = program, servers, packages

    def __enter__(self) -> Load:
        for number, package in enumerate(self._packages):
            environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
            process = self._stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", self._program, self._servers, f"writer{number}"],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            thread = threading.Thread(target=self._collect, args=(process,))
            self._stack.callback(thread.join)
            self._stack.callback(process.kill)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            at, place, body = json.loads(line)
            with self._lock:
                if place is not None:
                    self.acknowledged[place] = body
                    self.times.append(at)

    def wait(self, more: int = STEADY) -> None:
        goal = len(self.times) + more
        eventually(lambda: len(self.times) >= goal, what=f"{more} more acknowledgements")

    @property
    def most_silent_s(self) -> float:
        times = sorted(self.times)
        return max(later - earlier for earlier, later in pairwise(times))


def one_by_one(members: MemberProcesses, package: Path | None, load: Load) -> None:
    """Followers first, as docs/operations.md has it; each catches up before the next."""
    with connect(members.servers) as client:

        def leader() -> str | None:
            return next((row.id for row in client.status() if row.role == "leader"), None)

        first = eventually(leader, what="a leader")
        for member in sorted(members.members, key=lambda each: each.member_id == first):
            load.wait()
            member.stop()
            member.run_package(package)
            member.start()
            end = max(row.ledger_end_index for row in client.status())

            def is_back(member_id: str = member.member_id, end: int = end) -> bool:
                rows = {row.id: row for row in client.status()}
                row = rows.get(member_id)
                return row is not None and row.reachable and row.durable_index >= end

            eventually(is_back, what=f"{member.member_id} with everything up to {end}")
    load.wait()


def up_down_and_up(members: MemberProcesses, earlier: Path, load: Load) -> None:
    for package in (None, earlier, None):
        one_by_one(members, package, load)
    with connect(members.servers) as client:
        levels = {row.level for row in client.status()}
        assert len(levels) == 1
        assert client.finish_upgrade() == levels.pop()
    load.wait()


def said(package: Path | None, *arguments: str | Path, given: str = "") -> str:
    """By Python with this release, or with that in a folder."""
    environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_log_is_upgraded_and_goes_back_under_a_client_of_the_release_before(
    earlier: Path, tmp_path: Path
) -> None:
    with MemberProcesses(tmp_path / "members", package=earlier) as members:
        with Load(APPENDS, members.servers, [earlier, earlier, None]) as load:
            load.wait()
            up_down_and_up(members, earlier, load)
        assert load.most_silent_s < MOST_SILENT_S
        with connect(members.servers) as client:
            wait_until_identical(client)
            first = min(map(int, load.acknowledged))
            last = max(map(int, load.acknowledged))
            found = {
                entry.index: entry.body.decode(errors="replace")
                for start in range(first, last + 1, 1000)
                for entry in client.read(start, min(start + 1000, last + 1))
            }
        lost = {at: body for at, body in load.acknowledged.items() if found.get(int(at)) != body}
        assert lost == {}


def test_each_release_backs_up_the_other_and_restores_what_the_other_has_backed_up(
    earlier: Path, tmp_path: Path
) -> None:
    command = ("-m", "quorumlog.cli.main")
    backup = tmp_path / "backup"
    with (
        MemberProcesses(tmp_path / "members", package=earlier) as members,
        connect(members.servers) as client,
    ):
        for package, other in ((None, earlier), (earlier, None)):
            end = client.append_batch([b"x" * 1000] * 100).last_index
            said(package, *command, "backup", "--servers", members.servers, "--to", backup)
            for each in (package, other):
                said(each, *command, "verify", backup)
                assert f'"index":{end},' in said(
                    each, *command, "read", "--path", backup, "--from", str(end), "--json"
                )
                restored = MemberProcesses(tmp_path / "restored", package=each)
                listed = ",".join(f"{one.member_id}={one.address}" for one in restored.members)
                to = [f"--to={one.member_id}={one.data_dir}" for one in restored.members]
                said(each, *command, "restore", "--from", backup, "--members", listed, *to)
                with restored, connect(restored.servers) as log:
                    assert log.get(end).body == b"x" * 1000
                    log.append(b"goes on")
                    wait_until_identical(log)
            for member in members.members:
                wait_until_identical(client)
                member.stop()
                member.run_package(package)
                member.start()
            wait_until_identical(client)


class Product(NamedTuple):
    """What runs on a replicated log, with ports of its own, and programs of its clients."""

    serve: Callable[[str, Mapping[str, int], Path], Sequence[str]]
    """Of a member's id, the ports of all, and the members' folder."""
    writes: str
    reads: str
    """Gets the acknowledged places, tells what is there."""
    also_writes: str = ""
    """For a machine that has nothing to do otherwise."""


def serve_store(member_id: str, ports: Mapping[str, int], folder: Path) -> Sequence[str]:
    return ("kv", *SERVE, "--listen", f"127.0.0.1:{ports[member_id]}")


def serve_broker(member_id: str, ports: Mapping[str, int], folder: Path) -> Sequence[str]:
    brokers = ",".join(f"{name}=127.0.0.1:{port}" for name, port in ports.items())
    own = ("--dir", str(folder / member_id), "--brokers", brokers, "--topics", "t:2")
    return ("broker", *SERVE, "--role", "dledger", *own)


PRODUCTS = {
    "store": Product(serve_store, PUTS, GETS),
    "broker": Product(serve_broker, SENDS, PULLS, TOPICS),
}


class Served:
    """Members of the earlier release that serve a product, at ports of its own."""

    def __init__(self, name: str, folder: Path, earlier: Path, **options: str | int) -> None:
        self.product = PRODUCTS[name]
        self.ports = dict(zip(("n0", "n1", "n2"), free_ports(3), strict=True))
        self.servers = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.members = MemberProcesses(
            folder,
            package=earlier,
            command_of=lambda member_id: self.product.serve(member_id, self.ports, folder),
            **options,
        )

    def found(self, package: Path | None, load: Load) -> dict[str, str]:
        """What is where the load has put something, as a client of this release is told."""
        wanted = json.dumps(list(load.acknowledged))
        told: dict[str, str] = json.loads(
            said(package, "-c", self.product.reads, self.servers, given=wanted)
        )
        return told


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_upgraded_and_goes_back_under_clients_of_the_release_they_talk_to(
    name: str, earlier: Path, tmp_path: Path
) -> None:
    served = Served(name, tmp_path / "members", earlier)
    with served.members:
        with Load(served.product.writes, served.servers, [earlier, None]) as load:
            load.wait()
            up_down_and_up(served.members, earlier, load)
        assert load.most_silent_s < MOST_SILENT_S
        found = served.found(None, load)
        assert {at: each for at, each in load.acknowledged.items() if found.get(str(at)) != each} == {}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_member_that_was_away_gets_a_snapshot_of_the_other_release(
    name: str, earlier: Path, tmp_path: Path
) -> None:
    served = Served(name, tmp_path / "members", earlier, snapshot_entries=20, **RETENTION)
    packages: dict[str, Path | None] = {OLD: earlier, **dict.fromkeys(NEW)}
    for member_id, package in packages.items():
        served.members[member_id].run_package(package)
    with served.members, connect(served.members.servers) as client:
        for leader, away in ((OLD, NEW[0]), (NEW[1], OLD)):
            let_lead(client, leader)
            wait_until_identical(client)
            end = row_of(client, away).ledger_end_index
            served.members[away].kill()

            def has_dropped(end: int = end) -> bool:
                rows = [row for row in client.status() if row.reachable]
                return min(row.ledger_begin_index for row in rows) > end + 1

            with ExitStack() as stack:
                programs = filter(None, (served.product.also_writes, served.product.writes))
                loads = [Load(each, served.servers, [packages[leader]]) for each in programs]
                for load in loads:
                    stack.enter_context(load)
                eventually(has_dropped, what="a begin above the end of the one that is away")
            served.members[away].start()
            wait_until_identical(client)
            for member_id in (leader, away):
                let_lead(client, member_id)
                found = served.found(packages[member_id], load)
                kept = {at: each for at, each in load.acknowledged.items() if str(at) in found}
                assert kept.items() <= found.items()
                # Messages go with the part of the log that holds them; keys do not.
                assert len(kept) == len(load.acknowledged) if name == "store" else kept


@pytest.mark.parametrize("order", ["bca", "abc"])
def test_brokers_are_upgraded_while_messages_go_on(order: str, earlier: Path, tmp_path: Path) -> None:
    """Slaves first, and with an old slave under a new master."""
    with Group(tmp_path, earlier) as group:
        eventually(lambda: group.counts_all, what="two slaves that count, as all have noted")
        check_brokers_under_load(group, earlier, order, lone_master="a")


def test_brokers_with_a_coordinator_are_upgraded_while_messages_go_on(
    earlier: Path, tmp_path: Path
) -> None:
    with etcd_of_three(tmp_path / "etcd") as etcd:
        # A slave of the release before does not say that it goes: it is waited for.
        quick = ("--in-sync-timeout-ms", "1000")
        options = ("--failover", "etcd", "--coordinator", etcd.servers, *quick)
        with Group(tmp_path, earlier, *options) as group:
            master = group.master()
            group.send(master)
            check_brokers_under_load(group, earlier, "".join(sorted("abc", key=master.__eq__)))


def check_brokers_under_load(group: Group, earlier: Path, order: str, *, lone_master: str = "") -> None:
    """`lone_master`: none takes over from it, so that nothing is acknowledged while it starts again."""
    servers = ",".join(broker.address for broker in group.brokers.values())
    down_s = 0.0
    with Load(SENDS, servers, [earlier, None]) as load:
        load.wait()
        for name in order:
            began_s = time.monotonic()
            group.upgrade(name)
            if name == lone_master:
                down_s = time.monotonic() - began_s
            load.wait()
            eventually(lambda: group.asked(group.master())[2:] == [2], what="two slaves that count")
    assert load.most_silent_s < down_s + MOST_SILENT_S
    found = json.loads(said(None, "-c", PULLS, servers))
    assert {at: each for at, each in load.acknowledged.items() if found.get(str(at)) != each} == {}
