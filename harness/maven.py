"""Java classes from Maven Central, fetched by Maven and kept outside the repository."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SET_UP_TIMEOUT_S = 900.0


class Unavailable(Exception):
    """They cannot be had here; the message says why."""


def jars_of(pom: Path, cache: Path) -> str:
    """What the file names, as Java's class path; fetched into `cache` where that has other ones. Raises
    Unavailable."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    jars, kept = cache / "lib", cache / "pom.xml"
    if not kept.exists() or kept.read_text() != pom.read_text():
        shutil.rmtree(jars, ignore_errors=True)
        fetch = ("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies")
        run([*fetch, f"-DoutputDirectory={jars}"])
        kept.write_text(pom.read_text())
    return f"{jars}/*"


def run(command: Sequence[str | Path]) -> None:
    """Raises Unavailable."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SET_UP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} did not end within {SET_UP_TIMEOUT_S:g} s") from None
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise Unavailable(f"{command[0]} failed: {' '.join(last)}")
