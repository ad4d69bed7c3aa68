"""A wheel whose core is compiled does to the byte what its sources do (`make test-compiled`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.version import IS_COMPILED

SOURCES = Path(__file__).parents[2] / "src"


def live(seed: int, **environment: str) -> dict[str, object]:
    command = [sys.executable, "-m", "quorumlog", "sim", "--seed", str(seed), "--json"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True, timeout=100
    )
    life: dict[str, object] = json.loads(done.stdout)
    return life


def is_compiled(**environment: str) -> bool:
    command = [sys.executable, "-c", "from quorumlog.version import IS_COMPILED; print(IS_COMPILED)"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "True"


def test_the_sources_are_not_compiled_and_what_is_installed_says_what_it_is() -> None:
    assert not is_compiled(PYTHONPATH=str(SOURCES))
    assert is_compiled() == IS_COMPILED


@pytest.mark.parametrize("seed", [2, 3, 17, 305])
def test_what_is_installed_lives_the_lives_of_its_sources(seed: int) -> None:
    life = live(seed)
    assert life["ok"]
    assert life == live(seed, PYTHONPATH=str(SOURCES))
