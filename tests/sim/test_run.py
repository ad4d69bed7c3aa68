"""Whole runs of simulated clusters: what `make sim` does by the thousand."""

from __future__ import annotations

import pytest

from sim.log.run import run_seed
from tests.sim.kept_seeds import KEPT_SEEDS, KeptSeed

SEEDS = range(1, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_keeps_every_promise(seed: int) -> None:
    result = run_seed(seed, faults_ms=10_000)
    assert not result.failure, f"python -m sim --seed {seed} --seconds 10 --trace\n{result.failure}"


@pytest.mark.parametrize("kept", KEPT_SEEDS, ids=lambda kept: f"{kept.seed} {kept.mutant}")
def test_a_run_that_once_failed_keeps_every_promise(kept: KeptSeed) -> None:
    result = run_seed(kept.seed, lossy_disks=kept.lossy_disks, member_changes=kept.member_changes)
    assert not result.failure, f"{kept}\n{result.failure}"


def test_one_seed_is_one_run() -> None:
    lines: list[list[str]] = [[], []]
    first, second = (run_seed(7, faults_ms=5_000, tell=told.append) for told in lines)
    assert lines[0] == lines[1]
    assert first.trace_hash == second.trace_hash
    assert first.counts == second.counts
    assert run_seed(8, faults_ms=5_000).trace_hash != first.trace_hash


def test_listening_does_not_change_a_run() -> None:
    heard = run_seed(7, faults_ms=5_000, tell=lambda line: None)
    assert heard.trace_hash == run_seed(7, faults_ms=5_000).trace_hash
    assert any(name.startswith("dispatcher: ") for name in heard.counts)
