"""Commands with answers larger than anybody wants to hold: their effect stays, on all members alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.node.applying import kept_results
from quorumlog.node.applying.machine_runner import MachineRunner
from tests.kv import large_answers
from tests.kv.large_answers import KEPT_BYTES, saved_by

SAVED = Path(__file__).parents[1] / "fixtures" / "kv-version-1" / "saved.txt"
"""By the last release that had version 1 only, behind each stretch of the log."""


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_results, "MOST_BYTES", KEPT_BYTES)


def apply(runner: MachineRunner, stretch: EntryBatch) -> None:
    turn = runner.apply(stretch)
    assert turn.stopped is None, turn
    assert turn.applied is not None


def test_version_1_saves_what_the_release_before_has_saved() -> None:
    runner = large_answers.runner(KeyValueMachine(), 1)
    for stretch, expected in zip(large_answers.log(), SAVED.read_text().splitlines(), strict=True):
        apply(runner, stretch)
        assert saved_by(runner) == expected
