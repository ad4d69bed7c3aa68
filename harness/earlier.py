"""The release before this one, out of the history of this repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMIT = "fd35d4aa5c52"


def unpack(folder: Path) -> Path:
    """Its product is in `src` of the folder that is returned, and what breaks it beside that.

    Raises CalledProcessError where the history of this copy does not reach back so far.
    """
    command = ["git", "-C", str(ROOT), "archive", COMMIT, "src", "nemesis", "harness"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder
