"""The first moments of a command: what it loads, and signals that come before it has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
import typer.main

from quorumlog import LocalCluster, config
from quorumlog.bench.workloads import LOADS_BY_NAME
from quorumlog.cli import options
from quorumlog.cli.bench import LOADS
from quorumlog.cli.main import app
from quorumlog.version import IS_COMPILED
from tests.cli.conftest import Cli

COMMANDS = sorted(typer.main.get_group(app).commands)
SLOW = {"numpy", "uvloop", "rich", "pydantic", "asyncio", "pyarrow", "pyspark"}
ROOMS = {
    f"quorumlog.{room}" for room in ("server", "testing", "spark", "store", "client", "bench", "node")
}
REPORT = """
import atexit, sys
from quorumlog.__main__ import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""


def modules_of(*arguments: str) -> set[str]:
    """What a command has loaded when it ends; it may end with any status."""
    done = subprocess.run([sys.executable, "-c", REPORT, *arguments], capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split())


# ---------------------------------------------------------------- what it loads


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_the_command_line_alone(command: str) -> None:
    assert not modules_of(command, "--help") & (SLOW | ROOMS | {"msgspec", "quorumlog.config"})


@pytest.mark.processes
def test_the_version_loads_not_even_the_command_line() -> None:
    assert not modules_of("--version") & (SLOW | ROOMS | {"typer", "quorumlog.cli.main"})


@pytest.mark.processes
@pytest.mark.parametrize("command", ["status", "read", "append", "transfer --to n1"])
def test_a_client_loads_no_server_and_no_simulator(cluster: LocalCluster, command: str) -> None:
    loaded = modules_of(*command.split(), "--servers", cluster.servers)
    assert "quorumlog.client" in loaded
    assert not loaded & {"uvloop", "quorumlog.server", "quorumlog.testing", "quorumlog.spark"}


def test_what_help_knows_by_heart_is_true() -> None:
    assert options.DEFAULT_GROUP == config.DEFAULT_GROUP
    assert list(LOADS) == list(LOADS_BY_NAME)


# ---------------------------------------------------------------- signals


WITH_COMPILED = ("importlib", "warnings")


@pytest.mark.processes
def test_nothing_is_loaded_before_somebody_watches_for_ctrl_c() -> None:
    """What loads earlier may be interrupted by a traceback."""
    program = (
        "import sys; before = {*sys.modules}; import quorumlog.__main__; print(*{*sys.modules} - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    ours = {"quorumlog", "quorumlog.version", "quorumlog.cli", "quorumlog.cli.interrupts"}
    loaded = set(done.stdout.split())
    if IS_COMPILED:  # what stands for the compiled modules, and what Python loads one with
        loaded = {name for name in loaded if not name.startswith(WITH_COMPILED)}
        loaded = {name for name in loaded if not name.endswith("__mypyc")}
    assert loaded <= ours | {"quorumlog.__main__", "__future__"}


SENDS = """
import os, runpy, signal, sys

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)

wanted, number = sys.argv.pop(1), int(sys.argv.pop(1))
sys.meta_path.insert(0, Sender())
runpy.run_module("quorumlog", run_name="__main__", alter_sys=True)
"""
"""Runs a command that gets a signal at the moment when it is about to load a module."""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "module",
    ["typer", "quorumlog.config", "msgspec", "quorumlog.client", "numpy", "selectors", "rich.console"],
)
def test_a_signal_while_a_command_loads_ends_it_without_a_word(
    free_address: str, module: str, number: signal.Signals
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENDS, module, str(int(number)), "status", "--servers", free_address],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode in (128 + number, -number)


@pytest.mark.processes
@pytest.mark.parametrize("module", ["typer", "uvloop", "quorumlog.server"])
def test_a_member_outlives_sighup_while_it_loads_and_reads_its_file_once_it_listens(
    free_address: str, cli: Cli, tmp_path: Path, module: str
) -> None:
    config = tmp_path / "member.toml"
    config.write_text(f'member_id = "n0"\nmembers = "n0={free_address}"\ndata_dir = "{tmp_path}/n0"\n')
    process = Popen(
        [sys.executable, "-c", SENDS, module, str(int(signal.SIGHUP)), "serve", "--config", config],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("is reloaded" in line for line in process.stderr)
        assert cli("append", "--servers", free_address, input=b"on").exit_code == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.processes
def test_a_classic_broker_outlives_sighup_while_it_loads_and_reads_its_file_once_it_listens(
    free_address: str, cli: Cli, tmp_path: Path
) -> None:
    at = ("broker", "serve", "--dir", tmp_path / "store", "--topics", "t:1", "--bind", free_address)
    process = Popen(
        [sys.executable, "-c", SENDS, "uvloop", str(int(signal.SIGHUP)), *at],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("nothing to reload" in line for line in process.stderr)
        assert cli("broker", "send", "--servers", free_address, "--topic", "t", "on").exit_code == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.processes
def test_an_interrupt_of_a_running_command_closes_what_is_open(
    start: Callable[..., Popen[bytes]], free_address: str
) -> None:
    process = start("read", "--servers", free_address, "--follow")
    assert process.stderr is not None
    assert b"waiting for the cluster" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert process.stderr.read() == b""


def test_nothing_is_done_about_signals_that_are_ignored() -> None:
    """`nohup` and shells' background jobs ask for that."""
    program = (
        "import signal, sys; sys.argv[1:] = ['serve'];"
        "from quorumlog.cli.interrupts import watch_signals; watch_signals();"
        "print(all(signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGHUP)))"
    )
    done = subprocess.run(
        ["sh", "-c", f"trap '' INT HUP; exec {sys.executable} -c \"$0\"", program],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.stdout == "True\n"
