"""quorumlog bench: every load runs, and what it prints is complete."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog import LocalCluster
from quorumlog.cli.bench import Result, scratch_directory, target_lines
from quorumlog.cli.local_processes import listening_processes, usage_of
from quorumlog.cli.raw_limit import measure_raw_limit
from quorumlog.cli.workloads import LOADS, AppendLoad, Measured, ReadLoad, Target
from quorumlog.errors import ConfigError
from tests.cli.conftest import Cli, objects, plain


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with LocalCluster(3) as cluster:
        yield cluster.servers


def test_json_has_the_machine_and_a_line_a_load(servers: str, cli: Cli, tmp_path: Path) -> None:
    result = cli("bench", "--servers", servers, "--seconds", 0.2, "--raw-dir", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    machine, *rows = objects(result.stdout)
    assert machine["machine"]["cores"] >= 1
    assert machine["machine"]["fdatasync_p50_ms"] > 0
    assert [row["workload"] for row in rows] == [load.name for load in LOADS]
    for row in rows:
        assert row["records"] > 0, row
        assert 0 < row["p50_ms"] <= row["p99_ms"], row
        assert row["anonymous_mb"] > 0, row
        assert row["unknown_outcomes"] == 0, row
        is_append = "connections" in row
        assert (row["raw_records_per_second"] is not None) == is_append, row
    assert rows[0]["targets"][0].keys() == {"figure", "bound", "at_least", "met"}
    assert not list(tmp_path.iterdir()), "files of the raw limit are left behind"


def test_the_table_shows_targets_beside_figures(servers: str, cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "bench", "--servers", servers, "--seconds", 0.1, "--raw-dir", tmp_path, "--workload", "batches"
    )
    assert result.exit_code == 0, result.output
    text = plain(result.stdout)
    assert "batches: records_per_second" in text
    assert "target at least 80,000" in text
    assert "one-writer" not in text


def test_an_unknown_load_is_refused_with_the_valid_ones(servers: str, cli: Cli) -> None:
    result = cli("bench", "--servers", servers, "--workload", "quick")
    assert result.exit_code == 2
    assert "--workload quick is unknown; choose from one-writer, 64-writers" in plain(result.stderr)


def test_a_target_is_met_on_its_own_side_of_the_bound() -> None:
    load = ReadLoad("load", False, targets=(Target("mb_per_second", 500, True),))
    timed = AppendLoad("timed", 1, 1, 1, 1024, (Target("p50_ms", 1.1, False),))
    nan = float("nan")
    lines = target_lines(
        [
            Result(load, Measured(mb_per_second=500), nan),
            Result(load, Measured(mb_per_second=499), nan),
            Result(timed, Measured(p50_ms=1.1), nan),
            Result(timed, Measured(p50_ms=1.2), nan),
            Result(timed, Measured(), nan),
        ]
    )
    assert [line.startswith("[green]met") for line in lines] == [True, False, True, False, False]


def test_the_raw_limit_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    limit = measure_raw_limit(str(tmp_path), 4096, 0.1)
    assert limit.syncs_per_second > 0
    assert limit.sync_p50_ms > 0
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_to_be_measured_is_named_with_its_words() -> None:
    with pytest.raises(ConfigError, match=r"^the disk of /proc cannot be measured: .Errno .* make room"):
        measure_raw_limit("/proc", 4096, 0.1)


def test_a_directory_that_takes_no_files_is_refused_with_the_option() -> None:
    with (
        pytest.raises(ConfigError, match=r"^/proc takes no files .*--raw-dir"),
        scratch_directory(Path("/proc")),
    ):
        pass


LISTENER = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_listening_processes_are_found_by_address() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
        socket.create_server(("127.0.0.1", 0)) as own,
    ):
        assert other.stdout is not None
        theirs = f"127.0.0.1:{other.stdout.readline().strip()}"
        ours = f"127.0.0.1:{own.getsockname()[1]}"
        assert listening_processes([theirs]) == [other.pid]
        assert listening_processes([ours, theirs]) == sorted([os.getpid(), other.pid])
        other.communicate("")
    assert listening_processes([theirs, ours]) == [], "one of the members is gone"
    assert listening_processes(["192.0.2.1:20911"]) == [], "not this machine"


def test_usage_counts_processor_time_and_memory() -> None:
    works = "input(); held = bytearray(b'x') * (32 << 20); sum(range(3_000_000)); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", works], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = usage_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        after = usage_of(process.pid)
        process.communicate("\n")
    assert after.cpu_seconds > before.cpu_seconds
    assert after.anonymous_bytes >= before.anonymous_bytes + (32 << 20)
