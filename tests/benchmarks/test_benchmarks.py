"""`make bench` runs to its end and says what it measured; how fast that was is no matter here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.catch_up import measure_catch_up
from benchmarks.chart import draw_matrix
from benchmarks.delays import measure_delays
from benchmarks.idle import measure_idle
from benchmarks.large import time_start
from benchmarks.machines import measure_apply, measure_apply_share, measure_install, time_machine_start
from benchmarks.matrix import matrix_table_of, run_matrix
from benchmarks.open_loop import OVERLOAD, SHARES
from benchmarks.outcome import Outcome, outcome_table_of
from benchmarks.quick import calibration_s, verdicts
from benchmarks.retention import retention_outcome
from benchmarks.sessions import COMPARED, measure_sessions
from benchmarks.silent import measure_silent
from benchmarks.thin_links import measure_thin_link
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.workloads import AppendLoad
from quorumlog.cli.bench_tables import target_lines
from tests.tools import run_tool


@pytest.mark.processes
@pytest.mark.long
def test_a_short_run_measures_a_load_and_all_kinds_of_failover(tmp_path: Path) -> None:
    result = run_tool(
        *("benchmarks", "--seconds", 0.2, "--workload", "batches", "--kills", 2, "--stops", 1),
        *("--hand-overs", 1, "--restarts", 2, "--idle", 0, "--no-sessions", "--dir", tmp_path),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    machine, batches, fresh_reads, killed, stopped, terminated, restarts = lines
    assert machine["machine"]["cores"] >= 1
    assert batches["workload"] == "batches"
    assert batches["cpu_seconds_per_million"] > 0
    assert batches["share_of_raw"] > 0
    assert fresh_reads["workload"] == "fresh reads"
    assert min(fresh_reads["follower_per_second"], fresh_reads["three_per_second"]) > 0
    assert (killed["workload"], killed["runs"]) == ("failover-sigkill", 2)
    assert (stopped["workload"], stopped["runs"]) == ("failover-sigstop", 1)
    assert (terminated["workload"], terminated["runs"]) == ("failover-sigterm", 1)
    assert (restarts["workload"], restarts["restarts"]) == ("restarts", 2)
    assert 0 < restarts["median_s"] <= restarts["worst_s"]
    for failover in (killed, stopped, terminated):
        assert 0 < failover["median_s"] <= failover["p99_s"] <= failover["worst_s"]
    assert [target["figure"] for target in killed["targets"]] == ["median_s", "p99_s"]
    assert [target["figure"] for target in stopped["targets"]] == ["median_s", "worst_s"]
    for name in ("batches: records_per_second", "SIGKILL of the leader, 2 runs", "SIGSTOP", "SIGTERM"):
        assert name in result.stdout
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.png", "results.jsonl"]


@pytest.mark.processes
@pytest.mark.long
def test_a_short_run_measures_an_open_loop(tmp_path: Path) -> None:
    result = run_tool(
        "benchmarks",
        *("--seconds", 0.1, "--workload", "open-batches", "--kills", 0, "--stops", 0, "--idle", 0),
        *("--hand-overs", 0, "--restarts", 0, "--no-sessions", "--no-fresh-reads"),
        *("--dir", tmp_path),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["share_of_peak"] for row in lines[1:]] == [*SHARES, OVERLOAD]
    assert {row["workload"] for row in lines[1:]} == {"open-batches"}
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert "open-batches at 200%: goodput_share" in result.stdout


@pytest.mark.processes
def test_silent_connections_are_measured_beside_writers(tmp_path: Path) -> None:
    load = AppendLoad("few", 4, 1, 1, 100)
    outcome = measure_silent(tmp_path, 0.2, lambda text: None, connections=50, repetitions=1, load=load)
    assert outcome.figures["share"] > 0
    assert outcome.figures["memory_mb"] < 100


@pytest.mark.processes
def test_an_idle_group_is_watched(tmp_path: Path) -> None:
    outcome = measure_idle(tmp_path, 0.2, lambda text: None, settle_s=0)
    assert outcome.figures["seconds"] >= 0.2
    assert 0 <= outcome.figures["cpu_share_mean"] <= outcome.figures["cpu_share_highest"]
    assert outcome.figures["bytes_written"] >= 0
    assert [target["figure"] for target in outcome.row()["targets"]] == [
        "cpu_share_highest",
        "bytes_written",
    ]


@pytest.mark.processes
@pytest.mark.long
def test_the_matrix_delays_members_and_not_clients(tmp_path: Path) -> None:
    cells = list(
        run_matrix(
            *(tmp_path / "data", 0.2, lambda text: None),
            flushes=("async",),
            bodies=(128,),
            writers=(1, 2),
            delays_ms=(0, 5),
        )
    )
    assert [(cell.writers, cell.delay_ms) for cell in cells] == [(1, 0), (2, 0), (1, 5), (2, 5)]
    for cell in cells:
        assert cell.measured.records > 0
        if cell.delay_ms:
            assert cell.measured.p50_ms >= 10, "there and back"
    assert [cell.row()["through_proxy"] for cell in cells] == [False, False, True, True]
    assert matrix_table_of(cells).row_count == 2
    draw_matrix(tmp_path / "matrix.png", cells, "title")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.processes
@pytest.mark.long
def test_a_wiped_follower_catches_up_idle_and_under_load(tmp_path: Path) -> None:
    idle, *loaded = measure_catch_up(tmp_path, 10_000_000, 0.2, lambda text: None)
    for outcome in (idle, *loaded):
        assert outcome.figures["caught_up"] == 1, outcome
        assert outcome.figures["megabytes"] >= 10
        assert outcome.figures["disk_mb_per_second"] > 0
    assert [outcome.name for outcome in loaded] == ["catch-up-256-writers", "catch-up-batches"]
    for outcome in loaded:
        assert 0 < outcome.figures["during_p99_ms"] <= outcome.figures["during_p99_highest_ms"]


@pytest.mark.processes
@pytest.mark.long
def test_slow_links_are_compared_with_the_same_links_without_delay(tmp_path: Path) -> None:
    outcomes = list(measure_delays(tmp_path, 0.2, lambda text: None, repetitions=1))
    names = ["slow-follower-256-writers", "slow-follower-batches", "slow-links-256-writers"]
    assert [outcome.name for outcome in outcomes] == names
    for outcome in outcomes:
        figures = outcome.figures
        assert figures["share"] == figures["with_per_second"] / figures["without_per_second"]
        assert outcome.row()["targets"][0]["figure"] == "share"
    assert outcomes[-1].figures["with_p99_ms"] >= 4, "there and back"


@pytest.mark.processes
def test_producers_are_compared_with_clients_that_are_none(tmp_path: Path) -> None:
    batches, joined, _ = COMPARED
    found = measure_sessions(tmp_path, 0.2, lambda text: None, repetitions=1, loads=(batches, joined))
    outcomes = list(found)
    assert [outcome.name for outcome in outcomes] == ["session-batches", "session-joined"]
    for outcome in outcomes:
        figures = outcome.figures
        assert figures["share"] == figures["with_per_second"] / figures["without_per_second"] > 0


@pytest.mark.processes
@pytest.mark.long
def test_a_follower_behind_a_thin_link_is_measured_against_the_link(tmp_path: Path) -> None:
    outcome = measure_thin_link(tmp_path, 200, 1_000_000, lambda text: None)
    figures = outcome.figures
    assert 0 < figures["megabytes"] < 1.1
    assert figures["share_of_link"] == pytest.approx(
        figures["megabytes"] * 1e6 / figures["seconds"] / 204_800
    )


@pytest.mark.processes
@pytest.mark.long
def test_a_start_is_timed_after_a_clean_stop_after_a_kill_and_in_sparse_segments(tmp_path: Path) -> None:
    figures = time_start(tmp_path, 5_000_000, lambda text: None).figures
    starts = [figures[how] for how in ("clean_s", "killed_s", "sparse_s")]
    assert min(starts) > 0
    assert figures["worst_s"] == max(starts)


@pytest.mark.processes
@pytest.mark.long
def test_a_snapshot_goes_to_a_wiped_member_under_load_and_is_started_from(tmp_path: Path) -> None:
    install = measure_install(tmp_path / "install", 3_000_000, 0.5, lambda text: None).figures
    assert install["anonymous_mb"] > 0 < install["during_per_second"]
    start = time_machine_start(tmp_path / "start", 5_000_000, 1_000_000, lambda text: None).figures
    assert start["start_s"] > 0


def test_what_applying_costs_is_a_time() -> None:
    assert measure_apply(1024, lambda text: None).figures["us_an_entry"] > 0
    assert measure_apply_share(1, lambda text: None).figures["plain_us"] > 0


def test_an_outcome_says_what_was_not_measured() -> None:
    outcome = Outcome("name", {"a": 1.0, "b": math.nan}, (PromisedFigure("b", 2, False),), "note")
    row = outcome.row()
    assert (row["a"], row["b"], row["note"]) == (1.0, None, "note")
    assert row["targets"] == [{"figure": "b", "bound": 2, "at_least": False, "met": False}]
    assert target_lines([outcome]) == ["[red]not met[/]  name: b -, target at most 2"]
    assert outcome_table_of([outcome]).row_count == 2


def test_an_unknown_load_is_refused(tmp_path: Path) -> None:
    result = run_tool("benchmarks", "--workload", "quick", "--dir", tmp_path)
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


def test_the_growth_of_memory_is_that_of_the_last_quarter_over_the_first() -> None:
    outcome = retention_outcome([100, 90], [10, 10, 10, 10, 10, 10, 11, 11], 8.0)
    assert outcome.figure("memory_growth") == pytest.approx(0.1)
    assert outcome.figure("disk_mib_highest") == pytest.approx(100 / (1 << 20))
