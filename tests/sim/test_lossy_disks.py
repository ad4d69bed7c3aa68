"""Runs in which disks forget, on a majority too: losses are reported, nothing wrong is served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import typer
from typer.testing import CliRunner

from sim.__main__ import sim
from sim.log.losses import Losses, lost_entries
from sim.log.profile import LOSSY_DISK_KINDS
from sim.log.run import run_seed
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

SEEDS = range(1, 6)
LOSSY_DISKS = replace(QUIET, has_lossy_disks=True)


def test_whatever_disks_forget_nothing_wrong_is_served_and_losses_are_told() -> None:
    results = [run_seed(seed, faults_ms=5_000, lossy_disks=True) for seed in SEEDS]
    failed = {result.seed: result.failure for result in results if result.failure}
    assert not failed, f"python -m sim --lossy-disks --seed {min(failed)} --seconds 5 --trace\n{failed}"
    counts = sum((result.counts for result in results), Counter[str]())
    assert all(counts[f"fault: {kind}"] for kind in LOSSY_DISK_KINDS), counts
    assert any(result.lost for result in results)


def test_a_seed_on_lossy_disks_is_one_run_and_leaves_the_plain_one_of_its_number_alone() -> None:
    first, second = (run_seed(7, faults_ms=3_000, lossy_disks=True) for _ in range(2))
    assert first == second
    plain = run_seed(7, faults_ms=3_000)
    assert plain.trace_hash != first.trace_hash
    assert not any(plain.counts[f"fault: {kind}"] for kind in LOSSY_DISK_KINDS)


def test_a_majority_put_back_loses_what_came_after_the_copy_and_a_faithful_member_says_so() -> None:
    scene = Scenario(profile=LOSSY_DISKS)
    losses = Losses(scene.cluster)
    scene.watch(losses)
    scene.append(3)
    copies = {member: member.disk.snapshot() for member in scene.members}
    scene.append(2)
    faithful, others = scene.await_leader(), scene.followers()
    lost_from = faithful.node.store.end.index - 1
    for member in scene.members:
        member.stop()
    for member in others:
        member.disk.restore(copies[member])
        scene.cluster.notify("put_back", member)
        member.start()
    scene.ask_and_wait(scene.await_leader(*others))
    faithful.start()
    scene.run_for(10 * ELECTION_MS)
    assert losses.diverged == {faithful.member_id}
    assert lost_entries(scene.cluster) == [(lost_from, lost_from + 1)]
    assert faithful.node.committed_index == lost_from + 1, "gave up what it knows to be committed"


def test_a_group_that_kept_everything_reports_no_losses() -> None:
    scene = Scenario(profile=LOSSY_DISKS)
    scene.append(3)
    assert lost_entries(scene.cluster) == []


def test_the_command_prints_what_was_lost() -> None:
    command = typer.Typer()
    command.command()(sim)
    told = CliRunner().invoke(
        command, ["--lossy-disks", "--seed", "80", "--seeds", "3", "--seconds", "3"]
    )
    assert told.exit_code == 0, told.output
    assert "runs lost acknowledged entries" in told.output
    assert "fault: old copy" in told.output
