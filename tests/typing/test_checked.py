from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_mypy_checks_this_folder_and_names_ignores_that_are_not_needed() -> None:
    options = tomllib.loads(PROJECT.read_text())["tool"]["mypy"]
    assert "tests/typing" in options["files"] and options["strict"]
