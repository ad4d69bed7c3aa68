"""Each cell of the loss matrix in docs/durability.md names a test that is run in that mode."""

from __future__ import annotations

import re

from tests.docs.markdown import DOCS, section, tables
from tests.sim import test_loss_matrix as scenarios

TEXT = (DOCS / "durability.md").read_text()
MATRIX = tables(section(TEXT, "The loss matrix"))[0]
TESTS = tables(
    section((DOCS / "internals" / "testing.md").read_text(), "The loss matrix, cell by cell")
)[0]
PROOF = re.compile(r"`(test_\w+)` \(([a-z, ]+)\)")
MODES = ("sync", "async", "memory")


def modes_of(test: str) -> set[str]:
    """In which a scenario runs."""
    marks = getattr(scenarios, test).pytestmark
    return {mode for mark in marks if mark.args[0] == "mode" for mode in mark.args[1]}


def test_every_cell_names_a_test_that_runs_in_its_mode() -> None:
    assert len(MATRIX) > 15
    assert [row["no."] for row in TESTS] == [row["no."] for row in MATRIX]
    for row, proofs in zip(MATRIX, TESTS, strict=True):
        named = [
            (test, mode)
            for test, modes in PROOF.findall(proofs["on the simulator"])
            for mode in modes.split(", ")
        ]
        wanted = {mode for mode in MODES if row[mode] != "-"}
        assert {mode for _, mode in named} == wanted, f"row {row['no.']}: {row['fault']}"
        for test, mode in named:
            assert mode in modes_of(test), f"{test} does not run in mode {mode}"


def test_every_scenario_shows_a_cell() -> None:
    named = {test for row in TESTS for test, _ in PROOF.findall(row["on the simulator"])}
    assert named == {name for name in vars(scenarios) if name.startswith("test_")}
