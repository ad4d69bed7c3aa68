"""A command that finds something says which seed, and how to see it again."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from sim.__main__ import sim
from tests.mutants.consensus import append_acknowledged_before_sync


def test_a_seed_that_fails_is_printed_with_its_replay_and_ends_the_command_with_1() -> None:
    command = typer.Typer()
    command.command()(sim)
    with append_acknowledged_before_sync.living():
        told = CliRunner().invoke(command, ["--seed", "1", "--seeds", "2", "--jobs", "1"])
    assert told.exit_code == 1, told.output
    assert "failing seeds: 1" in told.output
    assert "replay: python -m sim --seed 1 --trace" in told.output
    assert "promises_on_disk" in told.output
