"""The programs of docs/state-machines.md run, and print what they say they print."""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import DOCS

TEXT = (DOCS / "state-machines.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHORT = 60
"""Lines that a machine with its use may have."""


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS[number]
    assert program.count("\n") <= SHORT
    exec(compile(program, f"program {number}", "exec"), {"__name__": "program"})
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    promised = re.findall(r"print\(.*\)  # ([^:,\n]*)", program)
    assert said == promised
