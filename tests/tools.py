"""The repository's own programs, run as a person runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_tool(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` in the root of the repository, to its end."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
