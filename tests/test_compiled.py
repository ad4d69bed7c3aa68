"""A wheel whose core is compiled does to the byte what its sources do (`make test-compiled`)."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quorumlog.version import IS_COMPILED

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
    "wheel"
]["hooks"]["mypyc"]


def compiled_by(pattern: str) -> list[Path]:
    place = ROOT / pattern.removeprefix("/")
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [file for file in files if file.name not in HOOK["exclude"]]


def output_of(*arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout


def run_of(seed: int, **environment: str) -> Any:
    return json.loads(output_of("-m", "sim", "--seed", str(seed), "--json", **environment))


@pytest.mark.parametrize("pattern", HOOK["include"])
def test_all_or_nothing_of_what_is_to_be_compiled_is(pattern: str) -> None:
    files = compiled_by(pattern)
    assert files, "the pattern names nothing"
    for file in files:
        name = ".".join(file.relative_to(SOURCES).with_suffix("").parts)
        origin = importlib.import_module(name).__file__
        assert origin is not None
        assert origin.endswith(".so") == IS_COMPILED, origin


def test_nothing_compiled_lies_beside_the_sources() -> None:
    assert not list(SOURCES.rglob("*.so")), "it would be imported instead of them: make clean"


# Not of runs with users, whose sessions are stubs, which what is compiled does not take.
@pytest.mark.parametrize("seed", [2, 5, 17, 307] if IS_COMPILED else [2])
def test_what_is_installed_runs_as_its_sources_do(seed: int) -> None:
    run = run_of(seed)
    assert run["ok"]
    assert run == run_of(seed, PYTHONPATH=str(SOURCES))
