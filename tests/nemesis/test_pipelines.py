"""A short run of pipelines beside writers, with members and drivers killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemesis.pipelines.run import Options, run
from nemesis.pipelines.writers import body_of, place_of


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_acknowledged_row_stands_once(tmp_path: Path) -> None:
    told: list[str] = []
    run(Options(tmp_path, minutes=0.3, seed=1), told.append)
    assert "each once, in order" in told[-1]


def test_a_row_says_what_it_is() -> None:
    assert place_of(body_of(3, 250)) == (3, 250)
