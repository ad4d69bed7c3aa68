"""One short run with real processes, as a person would start it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tools import run_tool


@pytest.mark.processes
def test_clients_are_told_the_truth_while_a_member_is_killed_and_another_is_cut_off_one_way(
    tmp_path: Path,
) -> None:
    # This seed draws a kill of the leader first and a cut second.
    done = run_tool(
        *("nemesis", "--rounds", 2, "--hold", 1.5, "--clients", 2, "--seed", 43),
        *("--fault", "kill", "--fault", "cut_one_way", "--dir", tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
    assert re.search(r"In sessions: [1-9].* 0 unknown at the end", " ".join(done.stdout.split()))
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [one["fault"] for one in rounds] == ["kill", "cut_one_way"]
    for client in ("c0", "c1"):  # the blocking one, and the one for asyncio
        history = [json.loads(line) for line in (tmp_path / f"history/{client}.jsonl").open()]
        assert {call["op"] for call in history if call["ok"]} >= {"append", "append_batch", "read"}
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "members").exists(), "data directories are left behind"


@pytest.mark.processes
@pytest.mark.long
def test_members_that_are_away_while_segments_go_come_back(tmp_path: Path) -> None:
    done = run_tool(
        *("nemesis", "--rounds", 2, "--hold", 4, "--clients", 2, "--rate", 0, "--seed", 5),
        *("--fault", "kill", "--retention", 256 << 10, "--dir", tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
    said = re.search(r"([0-9]+) logs made way for", " ".join(done.stdout.split()))
    assert said is not None and int(said[1]) > 0, done.stdout


@pytest.mark.processes
@pytest.mark.long
def test_members_and_a_client_of_the_release_before_are_beside_them(tmp_path: Path) -> None:
    done = run_tool(
        *("nemesis", "--rounds", 3, "--hold", 1, "--seed", 3, "--fault", "kill", "--mixed"),
        *("--dir", tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"([0-9]+) times with this release and ([0-9]+)", done.stdout)
    assert said is not None and int(said[1]) and int(said[2]), done.stdout
    assert "0 violations" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--fault", "flood"], "there is no fault"), (["--fault", "ring"], "ring needs 5 members")],
)
def test_a_fault_that_cannot_be_had_is_refused_before_anything_starts(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run_tool("nemesis", *arguments, "--dir", tmp_path / "out")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
