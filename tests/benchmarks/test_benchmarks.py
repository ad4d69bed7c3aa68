"""`make bench` runs to its end and says what it measured; how fast that was is no matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quick import calibration_s, verdicts

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
def test_a_short_run_measures_a_load_and_both_kinds_of_failover(tmp_path: Path) -> None:
    result = run(
        *("--seconds", 0.2, "--workload", "batches", "--kills", 2, "--stops", 1, "--dir", tmp_path)
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    machine, batches, killed, stopped = lines
    assert machine["machine"]["cores"] >= 1
    assert batches["workload"] == "batches"
    assert batches["cpu_seconds_per_million"] > 0
    assert batches["share_of_raw"] > 0
    assert (killed["workload"], killed["runs"]) == ("failover-sigkill", 2)
    assert (stopped["workload"], stopped["runs"]) == ("failover-sigstop", 1)
    for failover in (killed, stopped):
        assert 0 < failover["median_s"] <= failover["worst_s"]
    for name in ("batches: records_per_second", "SIGKILL of the leader, 2 runs", "SIGSTOP"):
        assert name in result.stdout
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.png", "results.jsonl"]


def test_an_unknown_load_is_refused(tmp_path: Path) -> None:
    result = run("--workload", "quick", "--dir", tmp_path)
    assert result.returncode == 2
    assert "quick is unknown" in result.stderr


def test_a_quick_look_names_what_became_dearer_and_what_became_cheaper() -> None:
    kept = {"batches": 2.0, "one-writer": 100.0, "small-records": 1.0}
    lines = verdicts({"batches": 2.5, "one-writer": 80.0, "small-records": 1.05, "new": 1.0}, kept)
    assert lines == [
        "[red]slower[/]  batches: 25% more CPU per record than was kept",
        "[green]faster[/]  one-writer: 20% less; --keep remembers it",
    ]
    assert verdicts({"batches": 2.1}, kept) == ["nothing changed by more than 10%"]


def test_the_calibration_is_a_time() -> None:
    assert 0 < calibration_s() < 1
