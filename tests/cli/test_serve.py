"""serve and dev: a member as a process, and every way to configure one that cannot work."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import pytest

from quorumlog import LocalCluster, UnknownMachine, connect
from quorumlog.server.free_ports import free_ports
from tests.cli.conftest import STORAGE, Cli, objects, plain
from tests.waiting import eventually, row_of, wait_until_identical

Start = Callable[..., Popen[bytes]]


def first_line(process: Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line, process.communicate()[1].decode()
    return line


def refusal(process: Popen[bytes]) -> str:
    """Standard error of a process that ends by itself with status 2 and without a traceback."""
    _, said = process.communicate(timeout=30)
    text = plain(said.decode())
    assert process.returncode == 2, text
    assert "Traceback" not in text
    return text


def member_of_a_cluster(tmp_path: Path) -> tuple[Path, str]:
    """The directory and address of n0 of a cluster of one that has run in group `default`."""
    with LocalCluster(members=1, directory=tmp_path, storage=STORAGE) as cluster:
        return cluster.data_dir("n0"), cluster.servers


def lines_until(process: Popen[bytes], text: str) -> str:
    """What it says on standard error, up to the line that has this text."""
    assert process.stderr is not None
    said = ""
    while text not in said:
        line = process.stderr.readline().decode()
        assert line, f"it ended without {text!r}: {said}"
        said += line
    return said


@pytest.fixture
def in_terminal(tmp_path: Path) -> Iterator[Callable[..., tuple[Popen[bytes], Terminal]]]:
    """Start a command in a terminal of its own, with a folder of its own for what is temporary."""
    begun: list[tuple[Popen[bytes], Terminal]] = []

    def begin(*arguments: object) -> tuple[Popen[bytes], Terminal]:
        ours, theirs = os.openpty()
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        process = Popen(
            [sys.executable, "-m", "quorumlog", *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "COLUMNS": "200", "TMPDIR": str(temporary)},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        begun.append((process, Terminal(ours)))
        return begun[-1]

    yield begin
    for process, terminal in begun:
        process.kill()
        process.wait()
        terminal.close()


class Terminal:
    """Our side of it."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read_until(self, text: str) -> str:
        said = ""
        while text not in said:
            said += os.read(self._file, 4096).decode()
        return said

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# ---------------------------------------------------------------- it serves


@pytest.mark.processes
def test_a_member_serves_until_sigterm_and_goes_on_where_it_stopped(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0")
    for round_number in range(2):
        process = start("serve", *options)
        line = first_line(process)
        assert "n0 of group default" in line
        assert f"listens on {free_address}" in line
        assert str(tmp_path / "n0") in line
        appended = cli("append", "--servers", free_address, input=b"round %d\n" % round_number)
        assert appended.exit_code == 0, appended.output
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, b"stopped cleanly\n")
    assert cli("read", "--path", tmp_path / "n0").stdout == "round 0\nround 1\n"


@pytest.mark.processes
def test_three_processes_form_hand_over_on_sigterm_and_lose_nothing(
    start: Start, cli: Cli, tmp_path: Path
) -> None:
    with LocalCluster(members=3, storage=STORAGE) as ports:  # three addresses that are free again
        members = ports.members
    listed = ",".join(f"{m.member_id}={m}" for m in members)
    servers = ",".join(map(str, members))
    processes = {
        m.member_id: start(
            "serve", "--id", m.member_id, "--members", listed, "--data-dir", tmp_path / m.member_id
        )
        for m in members
    }
    for process in processes.values():
        first_line(process)
    assert cli("append", "--servers", servers, input=b"before\n").exit_code == 0

    def leaders() -> list[str]:
        rows = objects(cli("status", "--servers", servers, "--json").stdout)
        return [row["id"] for row in rows if row["role"] == "leader"]

    (leader,) = eventually(leaders, what="a leader")
    processes[leader].send_signal(signal.SIGTERM)
    processes[leader].communicate(timeout=30)
    assert processes[leader].returncode == 0
    assert cli("append", "--servers", servers, input=b"after\n").exit_code == 0
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    for process in processes.values():
        process.communicate(timeout=30)
    assert [process.returncode for process in processes.values()] == [0, 0, 0]
    survivors = [tmp_path / m for m in processes if m != leader]
    verified = cli("verify", *survivors)
    assert verified.exit_code == 0, verified.output
    assert cli("read", "--path", survivors[0], "--local").stdout == "before\nafter\n"


@pytest.mark.processes
def test_sighup_reads_the_configuration_again(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    config = tmp_path / "member.toml"
    common = f"""
        member_id = "n0"
        members = "n0={free_address}"
        data_dir = "{tmp_path}/n0"
    """
    at = ("--servers", free_address)
    config.write_text(common)
    process = start("serve", "--config", config)
    first_line(process)
    assert cli("append", *at, input=b"x" * 500).exit_code == 0

    changes = "max_entry_bytes = 200\nscrub_bytes_per_second = 0\nlog_level = 'debug'"
    config.write_text(f"{common}\n{changes}\nheartbeat_interval_ms = 100\nbind = '127.0.0.1:1'")
    process.send_signal(signal.SIGHUP)
    said = lines_until(process, "is reloaded, log_level: info -> debug")
    assert "max_entry_bytes 4194304 -> 200" in said
    assert "scrub_bytes_per_second 4194304 -> 0" in said
    assert "needs a restart to change: heartbeat_interval_ms" in said
    assert "needs a restart to change: bind" in said
    refused = cli("append", *at, input=b"x" * 500)
    assert "max_entry_bytes = 200" in plain(refused.stderr)

    config.write_text(f"{common}\nmax_entry_bytes = 1\n")
    process.send_signal(signal.SIGHUP)
    said = lines_until(process, "nothing is reloaded")
    assert "max_entry_bytes (1) must be at least 49" in said
    assert cli("append", *at, input=b"y" * 100).exit_code == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.processes
def test_dev_ignores_sighup_and_ends_with_its_terminal_leaving_nothing_behind(
    in_terminal: Callable[..., tuple[Popen[bytes], Terminal]], tmp_path: Path
) -> None:
    process, terminal = in_terminal("dev", "--members", "1")
    said = terminal.read_until("Ctrl-C stops the cluster.")
    (server,) = set(re.findall(r"--servers (\S+)", said))
    temporary = tmp_path / "temporary"
    assert list(temporary.iterdir())
    process.send_signal(signal.SIGHUP)
    with connect(server) as log:
        log.append(b"it goes on")
        assert process.poll() is None
        terminal.close()
        assert process.wait(timeout=30) == 0
    assert not list(temporary.iterdir())


@pytest.mark.processes
def test_dev_ends_with_its_terminal_while_it_starts(
    in_terminal: Callable[..., tuple[Popen[bytes], Terminal]], tmp_path: Path
) -> None:
    process, terminal = in_terminal("dev", "--members", "3")
    temporary = tmp_path / "temporary"
    eventually(lambda: list(temporary.iterdir()) or process.poll() is not None)
    terminal.close()
    assert process.wait(timeout=60) == 0
    assert not list(temporary.iterdir())


@pytest.mark.processes
def test_a_member_outlives_its_terminal_and_its_clean_stop_is_no_failure(
    in_terminal: Callable[..., tuple[Popen[bytes], Terminal]],
    free_address: str,
    tmp_path: Path,
) -> None:
    process, terminal = in_terminal(
        "serve", "--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0"
    )
    terminal.read_until("listens on")
    terminal.close()
    with connect(free_address) as log:
        log.append(b"still here")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


@pytest.mark.processes
@pytest.mark.parametrize("logs", ["nowhere", "to the same"])
def test_a_member_that_cannot_say_that_it_listens_serves_all_the_same(
    free_address: str, tmp_path: Path, logs: str
) -> None:
    with open("/dev/full", "w") as full:
        process = Popen(
            [
                *(sys.executable, "-m", "quorumlog", "serve", "--id", "n0"),
                *("--members", f"n0={free_address}", "--data-dir", tmp_path / "n0"),
            ],
            stdout=full,
            stderr=DEVNULL if logs == "nowhere" else full,
        )
    try:
        with connect(free_address) as log:
            log.append(b"on")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.processes
def test_sighup_without_a_file_changes_nothing(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    process = start(
        "serve", "--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0"
    )
    first_line(process)
    process.send_signal(signal.SIGHUP)
    lines_until(process, "nothing to reload: there is no --config file")
    assert cli("append", "--servers", free_address, input=b"on").exit_code == 0


@pytest.mark.processes
def test_sighup_does_not_end_a_classic_broker_without_a_file(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    process = start(
        "broker", "serve", "--dir", tmp_path / "b", "--topics", "t:1", "--bind", free_address
    )
    first_line(process)
    process.send_signal(signal.SIGHUP)
    lines_until(process, "nothing to reload: there is no --config file")
    assert cli("broker", "send", "--servers", free_address, "--topic", "t", "on").exit_code == 0


@pytest.mark.processes
def test_a_toml_file_serves_several_groups(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    config = tmp_path / "member.toml"
    config.write_text(
        f"""
        member_id = "n0"
        members = "n0={free_address}"

        [groups.orders]
        data_dir = "{tmp_path}/orders"

        [groups.audit]
        store = "memory"
        """
    )
    process = start("serve", "--config", config)
    assert "group orders" in first_line(process)
    assert "data in memory only" in first_line(process)
    for group in ("orders", "audit"):
        at = ("--servers", free_address, "--group", group)
        assert cli("append", *at, input=group.encode()).exit_code == 0
        assert cli("read", *at).stdout == f"{group}\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.processes
def test_dev_runs_a_cluster_until_interrupted_and_keeps_its_directory(
    start: Start, cli: Cli, tmp_path: Path
) -> None:
    for text in (b"first", b"second"):
        process = start("dev", "--members", 3, "--dir", tmp_path / "dev", "--json")
        (said,) = objects(first_line(process))
        assert len(said["servers"].split(",")) == 3
        with connect(said["servers"]) as log:
            log.append(text)
            wait_until_identical(log)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors.decode()
        assert b"Traceback" not in errors
    assert cli("read", "--path", tmp_path / "dev" / "n0", "--local").stdout == "first\nsecond\n"
    result = cli("dev", "--members", 5, "--dir", tmp_path / "dev")
    assert result.exit_code == 2
    assert "--members 3" in plain(result.stderr)


@pytest.mark.processes
def test_dev_comes_back_at_its_addresses_and_at_those_that_are_asked_for(
    start: Start, cli: Cli, tmp_path: Path
) -> None:
    def servers_of(*options: object) -> str:
        process = start("dev", "--members", 1, "--dir", tmp_path / "dev", "--json", *options)
        (said,) = objects(first_line(process))
        result = cli("dev", "--members", 1, "--dir", tmp_path / "dev")
        assert result.exit_code == 2
        assert "is in use by another process" in plain(result.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        return str(said["servers"])

    drawn = servers_of()
    assert servers_of() == drawn
    (port,) = free_ports(1)
    assert servers_of("--port", port) == f"127.0.0.1:{port}"
    assert servers_of() == f"127.0.0.1:{port}"


def test_dev_names_a_port_that_is_in_use(cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("dev", "--members", 1, "--port", port, "--dir", tmp_path)
    assert result.exit_code == 2
    assert f"--port {port}: port {port} is in use" in plain(result.stderr)


# ---------------------------------------------------------------- it refuses


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--fluhs", "sync"), "No such option: --fluhs"),
        (("--flush", "often"), "--flush"),
        (("--store", "tape"), "--store"),
        (("--id", "n9"), "--id n9 is not in --members (n0, n1)"),
        (("--members", "n0=h:1,n1=h:1"), "--members: two members have the address h:1"),
        (("--members", "n0=h:1,n0=h:2"), "--members: two members have the id n0"),
        (("--preferred-leader", "n7"), "--preferred-leader n7 is not in --members"),
        (("--config", "none.toml"), "--config none.toml: No such file"),
        (("--bind", "nowhere"), "--bind: 'nowhere' is not an address"),
    ],
)
def test_a_bad_option_is_named(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    good = ("--id", "n0", "--members", "n0=127.0.0.1:1,n1=127.0.0.1:2", "--data-dir", tmp_path)
    result = cli("serve", *good, *arguments)
    assert result.exit_code == 2, result.output
    assert named in plain(result.stderr)


def test_an_unknown_option_in_toml_names_the_file_and_the_closest_option(
    cli: Cli, tmp_path: Path
) -> None:
    config = tmp_path / "member.toml"
    config.write_text("hartbeat_interval_ms = 100")
    result = cli("serve", "--config", config)
    assert result.exit_code == 2
    said = plain(result.stderr)
    assert f"{config}: unknown option 'hartbeat_interval_ms'" in said
    assert "'heartbeat_interval_ms'" in said


@pytest.mark.processes
def test_a_port_in_use_is_named_with_the_options_to_change(
    start: Start, stopped: list[Path], tmp_path: Path
) -> None:
    with LocalCluster(members=1, storage=STORAGE) as cluster:
        process = start(
            "serve", "--id", "n0", "--members", f"n0={cluster.servers}", "--data-dir", tmp_path / "n0"
        )
        said = refusal(process)
    assert f"cannot listen on {cluster.servers}: Address already in use; another process" in said
    assert "--members (or --bind)" in said


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"--group": "orders"}, "--group"),
        ({"--id": "n1"}, "--id"),
        ({}, "segment_bytes"),
    ],
    ids=["group", "member", "segment size"],
)
def test_a_directory_of_another_member_is_refused(
    start: Start, tmp_path: Path, options: dict[str, str], named: str
) -> None:
    directory, address = member_of_a_cluster(tmp_path)
    members = f"n0={address},n1=127.0.0.1:1" if options.get("--id") else f"n0={address}"
    given = {"--id": "n0", "--members": members, "--data-dir": str(directory), **options}
    said = refusal(start("serve", *(word for pair in given.items() for word in pair)))
    assert named in said
    assert str(directory) in said


@pytest.mark.processes
def test_a_second_process_of_a_running_member_ends_with_what_to_change(
    start: Start, free_address: str, tmp_path: Path
) -> None:
    config = tmp_path / "member.toml"
    config.write_text(
        f"segment_bytes = {STORAGE.segment_bytes}\nindex_segment_bytes = {STORAGE.index_segment_bytes}"
    )
    with LocalCluster(members=3, storage=STORAGE) as cluster, connect(cluster.servers) as log:
        log.append(b"formed")
        member = next(m for m in cluster.members if m.member_id != cluster.leader())
        options: dict[str, object] = {
            "--id": member.member_id,
            "--members": ",".join(f"{m.member_id}={m}" for m in cluster.members),
            "--bind": free_address,
            "--data-dir": tmp_path / "second",
            "--config": config,
        }
        said = refusal(start("serve", *(word for pair in options.items() for word in pair)))
        assert row_of(log, member.member_id).role == "follower"
    last = said.rpartition("quorumlog: ")[2]
    for named in (f"two processes are {member.member_id}", str(member), free_address):
        assert named in last, said


@pytest.mark.processes
def test_a_directory_in_use_is_refused(start: Start, free_address: str) -> None:
    with LocalCluster(members=1, storage=STORAGE) as cluster:
        directory = cluster.data_dir("n0")
        said = refusal(
            start("serve", "--id", "n0", "--members", f"n0={free_address}", "--data-dir", directory)
        )
    assert str(directory) in said


@pytest.mark.processes
def test_a_directory_without_write_permission_is_refused(
    start: Start, free_address: str, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", locked / "n0")
    said = refusal(start("serve", *options, **as_nobody_special()))
    assert str(locked / "n0") in said


def as_nobody_special() -> dict[str, Any]:
    """Root passes every permission check: it gives up the capability to, for the process to be."""
    if os.geteuid() != 0:
        return {}
    drop_bounding_capability, may_override_permissions = 24, 1
    prctl = ctypes.CDLL(None).prctl
    return {"preexec_fn": lambda: prctl(drop_bounding_capability, may_override_permissions, 0, 0, 0)}


@pytest.mark.processes
def test_python_without_assertions_is_refused(start: Start) -> None:
    assert "python -O" in refusal(start("serve", "--id", "n0", python=("-O",)))


@pytest.mark.processes
def test_damage_that_neither_data_nor_index_can_bound_ends_the_start_and_says_what_to_run(
    start: Start, tmp_path: Path
) -> None:
    with LocalCluster(members=1, directory=tmp_path, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([b"x" * 1000] * 100)
        address, directory = cluster.servers, cluster.data_dir("n0")
    shutil.rmtree(directory / "data")
    shutil.rmtree(directory / "index")
    config = tmp_path / "member.toml"
    config.write_text(
        f"segment_bytes = {STORAGE.segment_bytes}\nindex_segment_bytes = {STORAGE.index_segment_bytes}"
    )
    process = start(
        "serve", "--id", "n0", "--members", f"n0={address}", "--data-dir", directory, "--config", config
    )
    _, said = process.communicate(timeout=30)
    assert process.returncode == 3
    assert f"quorumlog verify {directory}" in plain(said.decode())
    assert b"Traceback" not in said


# ---------------------------------------------------------------- state machines


MACHINE = """
from quorumlog import StateMachine

class Counter(StateMachine):
    def __init__(self):
        self.value = 0
    def command(self, body, index):
        self.value += int(body)
        return b"%d" % self.value
    def query(self, question):
        return b"%d" % self.value
    def save(self, writer):
        writer.write(b"%d" % self.value)
    def load(self, reader):
        self.value = int(reader.read())
"""


@pytest.mark.processes
def test_a_served_state_machine_goes_on_where_it_was_killed(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    (tmp_path / "shop_machines.py").write_text(MACHINE)
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0")
    given = ("--state-machine", "shop_machines:Counter")
    for round_number in range(2):
        process = start("serve", *options, *given, cwd=tmp_path)
        first_line(process)
        with connect(free_address) as log:
            counter = log.machine("counter")
            for number in range(5):
                result = counter.append(b"1").result
                assert result == b"%d" % (5 * round_number + number + 1)
            assert counter.ask() == b"%d" % (5 * round_number + 5)
        (row,) = objects(cli("status", "--servers", free_address, "--json").stdout)
        assert row["machines"][0]["name"] == "counter"
        process.kill()
        process.communicate()


@pytest.mark.processes
def test_a_machine_that_is_held_back_takes_no_commands_and_the_log_does(
    start: Start, cli: Cli, free_address: str, tmp_path: Path
) -> None:
    (tmp_path / "shop_machines.py").write_text(MACHINE)
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0")
    given = ("--state-machine", "shop_machines:Counter", "--hold-machine", "counter")
    first_line(start("serve", *options, *given, cwd=tmp_path))
    with connect(free_address) as log:
        log.append(b"plain")
        with pytest.raises(UnknownMachine, match="counter is held back on n0"):
            log.machine("counter").append(b"1")
    checked = cli("status", "--servers", free_address, "--check")
    assert checked.exit_code == 1
    said = " ".join(plain(checked.stdout + checked.stderr).split())
    assert said.count("the state machine counter is held back on this member") == 1


def test_a_machine_that_there_is_not_cannot_be_held_back(
    cli: Cli, free_address: str, tmp_path: Path
) -> None:
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0")
    result = cli("serve", *options, "--state-machine", "n=json:dumps", "--hold-machine", "counter")
    assert result.exit_code == 2
    assert "--hold-machine or hold_machines: this member has no state machine 'counter'" in plain(
        result.stderr
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere:Counter", "nowhere cannot be imported"),
        ("json:Counter", "json has no Counter"),
        ("json", "must look like package.module:Factory"),
        ("A B=json:dumps", "is no name of a state machine"),
    ],
)
def test_a_state_machine_that_cannot_be_is_refused(
    cli: Cli, free_address: str, tmp_path: Path, given: str, said: str
) -> None:
    options = ("--id", "n0", "--members", f"n0={free_address}", "--data-dir", tmp_path / "n0")
    result = cli("serve", *options, "--state-machine", given)
    assert result.exit_code == 2
    assert said in plain(result.stderr)
