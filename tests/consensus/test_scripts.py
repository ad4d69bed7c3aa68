"""The scenario scripts: `tests/consensus/scripts/*.txt`, each a story that a stranger can read.

A script is a list of blocks, separated by empty lines:

    # Comment: what happens and why.
    command
    command
    ----
    what the members did, line by line

The commands are the methods `do_...` of `scenario.Scenario`.
"""

from pathlib import Path

import pytest

from .scenario import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    now = run_script(written)
    if request.config.getoption("rewrite", default=False):
        path.write_text(now)
    else:
        assert now == written


def test_there_are_scripts_for_every_group_size() -> None:
    sizes = {
        line.split()[1]
        for path in SCRIPTS
        for line in path.read_text().splitlines()
        if line.startswith("members ")
    }
    assert {"1", "2", "3", "5", "7"} <= sizes
