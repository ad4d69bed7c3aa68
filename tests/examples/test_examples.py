"""Each program in examples/ runs and prints what it is there to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_process_cluster(tmp_path: Path) -> None:
    lines = run("one_process_cluster.py", tmp_path)
    assert lines[1].startswith("100 entries from index ")
    assert " is dead, " in lines[2]
    assert [line[:3] for line in lines[4:7]] == ["n0:", "n1:", "n2:"]
    assert lines[-1] == "101 entries in the log"


def test_tail_and_append(tmp_path: Path) -> None:
    lines = run("tail_and_append.py", tmp_path)
    read = [line.partition(": ")[2] for line in lines if line.startswith("  read ")]
    assert read == [f"message {number}" for number in range(20)]


def test_read_arrow(tmp_path: Path) -> None:
    assert run("read_arrow.py", tmp_path) == [
        "10000 rows of index, term, body, the bodies sum to 49995000"
    ]


@pytest.mark.spark
def test_spark_read(tmp_path: Path) -> None:
    assert run("spark_read.py", tmp_path) == ["s0 14850", "s1 14950", "s2 15050"]


def test_every_example_is_run_here() -> None:
    tested = {name.removeprefix("test_") + ".py" for name in globals() if name.startswith("test_")}
    assert {path.name for path in EXAMPLES.glob("*.py")} <= tested
