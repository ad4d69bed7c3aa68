"""Three members whose state machine ends its process at one command: the way out, as a user goes it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from quorumlog import CommandError, LedgerError, UnknownMachine, connect, leader_of
from quorumlog.server.free_ports import free_ports
from tests.cli.conftest import Cli, objects, plain
from tests.cli.test_serve import first_line
from tests.waiting import eventually

POISON = """
import os
from quorumlog import StateMachine

class Counter(StateMachine):
    def __init__(self):
        self.value = 0
    def command(self, body, index):
        if body == b"poison":
            os._exit(66)
        self.value += int(body)
        return b"%d" % self.value
    def query(self, question):
        return b"%d" % self.value
    def save(self, writer):
        writer.write(b"%d" % self.value)
    def load(self, reader):
        self.value = int(reader.read())
"""
MEMBERS = ("n0", "n1", "n2")
Start = Callable[..., "Popen[bytes]"]


class Members:
    def __init__(self, start: Start, path: Path) -> None:
        self._start, self._path = start, path
        (path / "poison.py").write_text(POISON)
        ports = free_ports(3)
        self.servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._list = ",".join(f"{m}=127.0.0.1:{p}" for m, p in zip(MEMBERS, ports, strict=True))
        self.running: list[Popen[bytes]] = []

    def start(self, *more: str) -> None:
        for member in MEMBERS:
            options = ("--id", member, "--members", self._list, "--data-dir", self._path / member)
            machine = ("--state-machine", "poison:Counter", "--log-level", "error", *more)
            self.running.append(self._start("serve", *options, *machine, cwd=self._path))
        for process in self.running:
            first_line(process)

    def ended(self) -> int:
        """How many the machine has ended."""
        return [process.poll() for process in self.running].count(66)

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        self.running = []


def problems_of(cli: Cli, servers: str) -> list[str]:
    rows = objects(cli("status", "--servers", servers, "--json").stdout)
    return [problem for row in rows for problem in row["problems"] if "counter is held" in problem]


@pytest.mark.processes
def test_a_group_goes_on_without_the_command_that_ends_it(
    start: Start, cli: Cli, tmp_path: Path
) -> None:
    members = Members(start, tmp_path)
    members.start()
    with connect(members.servers, timeout_ms=20_000) as log:
        assert log.machine("counter").append(b"1").result == b"1"
        assert log.machine("counter").append(b"2").result == b"3"
        with pytest.raises(LedgerError):
            log.machine("counter").append(b"poison", timeout_ms=2_000)
    eventually(lambda: members.ended() >= 2, what="no quorum left")
    members.end()

    members.start()
    eventually(lambda: members.ended() >= 2, what="no quorum left after a restart either")
    members.end()

    members.start("--hold-machine", "counter")
    with connect(members.servers, timeout_ms=20_000) as log:
        assert log.append(b"plain").count == 1
        with pytest.raises(UnknownMachine, match="counter is held back on"):
            log.machine("counter").append(b"3")
        told = eventually(lambda: problems_of(cli, members.servers))
        named = {int(n) for each in told for n in re.findall(r"applied entry (\d+)", each)}
        assert len(named) == 1, told
        (index,) = named
        shown = cli("read", "--servers", members.servers, "--from", index, "--to", index + 1)
        assert "poison" in shown.stdout
        refused = cli("machine", "step-over", "counter", index - 1, "--servers", members.servers)
        assert refused.exit_code == 1
        assert f"entry {index - 1} was applied to counter on" in plain(refused.stderr)
        leader = leader_of(log.status())
        assert leader is not None
        away = next(each for each in MEMBERS if each != leader.id)
        silent = members.running[MEMBERS.index(away)]
        silent.send_signal(signal.SIGSTOP)
        refused = cli("machine", "step-over", "counter", index, "--servers", members.servers)
        silent.send_signal(signal.SIGCONT)
        assert refused.exit_code == 1
        assert f"no answer from {away}, where entry {index} may" in plain(refused.stderr)
        done = cli("machine", "step-over", "counter", index, "--servers", members.servers)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.startswith(f"counter leaves out entry {index}, by entry ")
        again: Any = objects(
            cli(
                *("machine", "step-over", "counter", index, "--json", "--servers", members.servers)
            ).stdout
        )
        assert again[0]["index"] == index
    members.end()

    members.start()
    with connect(members.servers, timeout_ms=20_000) as log:
        assert log.machine("counter").ask() == b"3"
        assert log.machine("counter").append(b"4").result == b"7"
        eventually(lambda: [row.problems for row in log.status()] == [()] * 3, what="no problem left")
        eventually(
            lambda: all(row.machines[0].applied_index > index for row in log.status()),
            what="all machines behind it",
        )
        assert members.ended() == 0
    members.end()


@pytest.mark.processes
def test_who_repeats_a_command_that_was_stepped_over_is_refused(
    start: Start, cli: Cli, tmp_path: Path
) -> None:
    members = Members(start, tmp_path)
    members.start("--hold-machine", "counter")
    members.end()
    members.start()
    options: dict[str, Any] = {"timeout_ms": 2_000, "producer_id": "p"}
    with connect(members.servers, **options) as log, pytest.raises(LedgerError):
        log.append(b"poison", machine="counter", sequence=0)
    eventually(lambda: members.ended() >= 2, what="no quorum left")
    members.end()
    members.start("--hold-machine", "counter")
    told = eventually(lambda: problems_of(cli, members.servers))
    (index, *_) = [int(n) for each in told for n in re.findall(r"applied entry (\d+)", each)]
    done = cli("machine", "step-over", "counter", index, "--servers", members.servers)
    assert done.exit_code == 0, done.stderr
    members.end()
    members.start()
    options["timeout_ms"] = 20_000
    with (
        connect(members.servers, **options) as log,
        pytest.raises(CommandError, match=f"entry {index} was stepped over"),
    ):
        log.append(b"poison", machine="counter", sequence=0)
    members.end()


def test_a_store_can_be_held_back_and_nothing_else_of_it(
    cli: Cli, free_address: str, tmp_path: Path
) -> None:
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0")
    result = cli("kv", "serve", *options, "--hold-machine", "counter")
    assert result.exit_code == 2
    assert (
        "--hold-machine or hold_machines: this member has no state machine 'counter' (it has: kv)"
        in plain(result.stderr)
    )
