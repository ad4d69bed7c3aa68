"""quorumlog bench: every load runs, and what it prints is complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog import LocalCluster
from quorumlog.bench.closed_loop import Result
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.workloads import LOADS, AppendLoad, Measured, ReadLoad
from quorumlog.cli.bench_tables import target_lines
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
    load = ReadLoad("load", False, targets=(PromisedFigure("mb_per_second", 500, True),))
    timed = AppendLoad("timed", 1, 1, 1, 1024, (PromisedFigure("p50_ms", 1.1, False),))
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
