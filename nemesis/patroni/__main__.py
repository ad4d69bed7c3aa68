"""The command: `python -m nemesis.patroni`. Status 0 only if PostgreSQL fared as it should."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from harness.signals import end_as_ctrl_c_does
from nemesis.patroni.run import run


def main(
    patroni: Annotated[Path, typer.Option(help="The program, of a virtual environment of its own.")] = (
        Path(".venv-patroni/bin/patroni")
    ),
    bin_dir: Annotated[Path, typer.Option(help="Where PostgreSQL's programs are.")] = Path(
        "/usr/lib/postgresql/15/bin"
    ),
) -> None:
    """Kill the store's leaders and PostgreSQL's primary under Patroni, and look who takes writes.

    Example: python -m nemesis.patroni --bin-dir /usr/lib/postgresql/16/bin
    """
    for path, what in (
        (patroni, "make nemesis-patroni installs it"),
        (bin_dir, "apt install postgresql"),
    ):
        if not path.exists():
            raise typer.BadParameter(f"{path} is not there: {what}")
    end_as_ctrl_c_does()
    with tempfile.TemporaryDirectory(prefix="quorumlog-patroni-") as folder:
        Path(folder).chmod(0o755)
        run(Path(folder), patroni.absolute(), bin_dir, lambda line: print(line, flush=True))


if __name__ == "__main__":
    typer.run(main)
