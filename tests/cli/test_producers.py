"""quorumlog append --producer, and quorumlog producers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect
from tests.waiting import eventually


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=3) as cluster:
        yield cluster


def run(cluster: LocalCluster, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    count = 2 if arguments[0] == "producers" else 1
    names, rest = arguments[:count], arguments[count:]
    return subprocess.run(
        [sys.executable, "-m", "quorumlog", *names, "--servers", cluster.servers, *rest],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def bodies(cluster: LocalCluster, first_index: int) -> list[bytes]:
    with connect(cluster.servers) as log:
        return [entry.body for entry in log.read(first_index)]


def test_a_file_that_was_appended_in_part_is_appended_to_its_end(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with connect(cluster.servers) as log:
        begin = log.end_index() + 1
    lines = [f"line {number}" for number in range(50)]
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in lines[:20]))
    first = run(cluster, "append", "--producer", "file", str(path))
    assert first.stdout.startswith("appended 20 entries"), first.stderr
    path.write_text("".join(f"{line}\n" for line in lines))
    again = run(cluster, "append", "--producer", "file", str(path))
    assert again.stdout.startswith("appended 30 entries"), again.stderr
    assert again.stdout.endswith("; 20 lines were in the log already\n")
    nothing = run(cluster, "append", "--producer", "file", str(path))
    assert nothing.stdout == "nothing to append; 50 lines were in the log already\n"
    assert nothing.stderr == ""
    in_json = run(cluster, "append", "--producer", "file", "--json", str(path))
    assert (in_json.stdout, in_json.stderr) == ("", "50 lines were in the log already\n")
    other = run(cluster, "append", "--producer", "file", given="of another file\n")
    assert "the log holds 50 lines of producer file, and the input has 1" in other.stderr
    assert bodies(cluster, begin) == [line.encode() for line in lines]


def test_a_producer_that_is_killed_goes_on_where_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    with connect(cluster.servers) as log:
        begin = log.end_index() + 1
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        lines = [b"%d" % number for number in range(2000)]
        command = [sys.executable, "-m", "quorumlog", "append", "--servers", cluster.servers]
        with (
            subprocess.Popen(
                [*command, "--producer", "killed", str(fifo)], stdout=subprocess.DEVNULL
            ) as process,
            fifo.open("wb", buffering=0) as source,
        ):
            source.write(b"\n".join(lines[:1000]) + b"\n")
            eventually(lambda: log.end_index() > begin)
            process.send_signal(signal.SIGKILL)
            process.wait()
        path = tmp_path / "all"
        path.write_bytes(b"\n".join(lines))
        done = run(cluster, "append", "--producer", "killed", str(path))
        assert done.returncode == 0, done.stderr
        assert bodies(cluster, begin) == lines


def test_producers_are_listed_shown_and_forgotten(cluster: LocalCluster) -> None:
    run(cluster, "append", "--producer", "orders", given="a\nb\n")
    rows = map(json.loads, run(cluster, "producers", "list", "--json").stdout.splitlines())
    row = next(row for row in rows if row["producer"] == "orders")
    assert row["last_sequence"] == 1
    assert "orders" in run(cluster, "producers", "list").stdout.split()
    assert json.loads(run(cluster, "producers", "show", "orders", "--json").stdout) == row
    forgotten = run(cluster, "producers", "forget", "orders")
    assert forgotten.stdout.startswith("forgotten: orders: last sequence 1")
    gone = run(cluster, "producers", "show", "orders")
    assert gone.returncode != 0
    assert "'orders'" in gone.stderr


def test_a_condition_and_a_producer_exclude_each_other(cluster: LocalCluster) -> None:
    refused = run(cluster, "append", "--producer", "p", "--expected-last", "3", given="a\n")
    assert refused.returncode == 2
    assert "exclude each other" in refused.stderr
