"""Each program in examples/ runs and prints what it is there to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, directory: Path, *arguments: str) -> list[str]:
    """What an example prints, or a module (`-m`)."""
    program = name if name == "-m" else str(EXAMPLES / name)
    done = subprocess.run(
        [sys.executable, program, *arguments],
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


def test_users(tmp_path: Path) -> None:
    read, refused = run("users.py", tmp_path)
    assert read == "[b'for bob']" and "user bob may not write log 'default'" in refused


def test_tail_and_append(tmp_path: Path) -> None:
    lines = run("tail_and_append.py", tmp_path)
    read = [line.partition(": ")[2] for line in lines if line.startswith("  read ")]
    assert read == [f"message {number}" for number in range(20)]


def test_read_arrow(tmp_path: Path) -> None:
    assert run("read_arrow.py", tmp_path) == [
        "10000 rows of index, term, body, the bodies sum to 49995000"
    ]


def test_producer(tmp_path: Path) -> None:
    (line,) = run("producer.py", tmp_path)
    assert line.startswith("all 10000 are committed, the last at 10")


def test_consumer(tmp_path: Path) -> None:
    assert run("consumer.py", tmp_path) == [
        "30 entries, then a 210, b 225",
        "70 entries, then a 2450, b 2500",
        "0 entries, then a 2450, b 2500",
    ]
    assert not list(tmp_path.iterdir()), "the next run would go on where this one has ended"


def test_outbox(tmp_path: Path) -> None:
    assert run("outbox.py", tmp_path) == [
        "relayed 2",
        "relayed 2",
        "1 apples, 2 pears, 3 plums, 4 figs",
    ]


def test_embedded_server(tmp_path: Path) -> None:
    assert run("embedded_server.py", tmp_path) == ["100 events from index 2 on", "stopped"]


def test_pytest_fixture(tmp_path: Path) -> None:
    lines = run(
        "-m", tmp_path, "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "pytest_fixture.py")
    )
    assert "4 passed" in lines[-1]


@pytest.mark.spark
def test_spark_read(tmp_path: Path) -> None:
    assert run("spark_read.py", tmp_path) == ["s0 14850", "s1 14950", "s2 15050"]


def test_every_example_is_run_here() -> None:
    tested = {name.removeprefix("test_") + ".py" for name in globals() if name.startswith("test_")}
    of_the_store = (Path(__file__).parent.parent / "kv" / "test_examples.py").read_text()
    missing = {path.name for path in EXAMPLES.glob("*.py")} - tested
    assert {name for name in missing if f'run("{name}"' not in of_the_store} == set()


def test_exactly_once_outbox(tmp_path: Path) -> None:
    rows = [f"row {number}" for number in range(8)]
    assert run("exactly_once_outbox.py", tmp_path) == ["sent 5", "sent 3", f"in the log {rows}"]
