"""The main job as a person runs it, with real processes that are really killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.bench.running_group import listening_processes
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def addresses_in(members: Path) -> list[str]:
    """Of the members that were started in this folder."""
    found = [re.search(r'members = "(.*)"', path.read_text()) for path in members.glob("*.toml")]
    listed = next((match[1] for match in found if match), "")
    return [item.partition("=")[2] for item in listed.split(",") if item]


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.long
def test_flights_survive_a_killed_producer_a_killed_and_a_stopped_leader(tmp_path: Path) -> None:
    with start("--rows", 5000, "--dir", tmp_path) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "DIFFERS" not in output
    assert re.search(r"rows lost\s+│\s+0 │", output), output
    assert re.search(r"rows repeated\s+│\s+0 │", output), output
    assert re.search(r"SIGKILL of the producer.*went on at row", output, re.DOTALL), output
    for signal_name in ("SIGKILL", "SIGSTOP"):
        assert re.search(rf"{signal_name} of the leader n\d: next acknowledged append", output), output
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"throughput.png", "producer.log"}, (
        "data directories are left behind"
    )


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    members = tmp_path / "members"
    # Few rows, but the leader is stopped for five seconds on the way: it cannot end before the signal.
    with start("--no-spark", "--rows", 2000, "--dir", tmp_path) as process:
        eventually(lambda: len(listening_processes(addresses_in(members))) == 3, what="three members")
        pids = listening_processes(addresses_in(members))
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode != 0, output
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not listening_processes(addresses_in(members))
