"""A group is upgraded one member at a time, and goes back, while it is written to: nothing is lost, and
nobody waits for two seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from harness.member_processes import SERVE, MemberProcesses
from quorumlog import connect, kv
from quorumlog.server.free_ports import free_ports
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
import itertools, json, sys, time
from quorumlog import kv
from quorumlog.errors import LedgerError
servers, name = sys.argv[1:]
for number in itertools.count():
    try:
        with kv.connect(servers) as store:
            for number in itertools.count(number):
                store.put(f"{name}/{number}", f"{number}")
                print(json.dumps([time.time(), f"{name}/{number}", f"{number}"]), flush=True)
    except LedgerError as error:
        print(json.dumps([time.time(), None, repr(error)]), flush=True)
        time.sleep(0.02)
"""
"""A client that meets a member of the other release goes, and looks for one of its own."""


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


@contextmanager
def group_of(earlier: Path, folder: Path, **options: object) -> Iterator[MemberProcesses]:
    members = MemberProcesses(folder / "members", package=earlier, **options)  # type: ignore[arg-type]
    with members:
        yield members


def up_down_and_up(members: MemberProcesses, earlier: Path, load: Load) -> None:
    for package in (None, earlier, None):
        one_by_one(members, package, load)
    with connect(members.servers) as client:
        levels = {row.level for row in client.status()}
        assert len(levels) == 1
        assert client.finish_upgrade() == levels.pop()
    load.wait()


def test_a_log_is_upgraded_and_goes_back_under_a_client_of_the_release_before(
    earlier: Path, tmp_path: Path
) -> None:
    with group_of(earlier, tmp_path) as members:
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


def said(package: Path | None, *arguments: str | Path) -> str:
    """By the command line of this release, or of that in a folder."""
    environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
    done = subprocess.run(
        [sys.executable, "-m", "quorumlog.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_release_backs_up_the_other_and_goes_on_with_its_backup(
    earlier: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    with group_of(earlier, tmp_path) as members, connect(members.servers) as client:
        for package, other in ((None, earlier), (earlier, None), (None, earlier)):
            end = client.append_batch([b"x" * 1000] * 100).last_index
            said(package, "backup", "--servers", members.servers, "--to", backup)
            for each in (package, other):
                said(each, "verify", backup)
                assert f'"index":{end},' in said(
                    each, "read", "--path", backup, "--from", str(end), "--json"
                )
            for member in members.members:
                wait_until_identical(client)
                member.stop()
                member.run_package(package)
                member.start()
            wait_until_identical(client)


def test_a_key_value_store_is_upgraded_and_goes_back_under_clients_of_the_release_they_talk_to(
    earlier: Path, tmp_path: Path
) -> None:
    ports = dict(zip(("n0", "n1", "n2"), free_ports(3), strict=True))

    def command_of(member_id: str) -> Sequence[str]:
        return ("kv", *SERVE, "--listen", f"127.0.0.1:{ports[member_id]}")

    stores = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    with group_of(earlier, tmp_path, command_of=command_of) as members:
        with Load(PUTS, stores, [earlier, None]) as load:
            load.wait()
            up_down_and_up(members, earlier, load)
        assert load.most_silent_s < MOST_SILENT_S
        with kv.connect(stores) as store:
            found = {key: store.get(str(key)) for key in load.acknowledged}
        lost = {
            key: value
            for key, value in load.acknowledged.items()
            if (kept := found[key]) is None or kept.value != value.encode()
        }
        assert lost == {}
