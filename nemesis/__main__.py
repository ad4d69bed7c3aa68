"""The command: `python -m nemesis`. Status 0 only if the checker accepts what has happened."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.encryption import encrypt
from harness.signals import end_as_ctrl_c_does
from nemesis.faults import FAULTS
from nemesis.machines import SNAPSHOT_BYTES

EXIT_VIOLATION = 1


def main(
    minutes: Annotated[float, typer.Option(help="How long things go wrong.", min=0.05)] = 4.0,
    rounds: Annotated[
        int | None,
        typer.Option(help="So many faults, one after the other, instead of --minutes.", min=1),
    ] = None,
    hold: Annotated[
        float | None, typer.Option(help="Seconds that each fault lasts. [default: drawn]", min=0)
    ] = None,
    members: Annotated[int, typer.Option(help="3 or 5; any odd number from 3.", min=3)] = 3,
    seed: Annotated[
        int | None, typer.Option(help="Decides faults and calls. [default: drawn and shown]")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only this fault; may be repeated. One of {', '.join(FAULTS)}.", metavar="NAME"
        ),
    ] = None,
    clients: Annotated[int, typer.Option(help="Client processes.", min=1)] = 3,
    rate: Annotated[
        float, typer.Option(help="Calls of one client per second; 0: no limit.", min=0)
    ] = 60.0,
    retention: Annotated[
        int,
        typer.Option(
            help="Bytes of the log that stay, so that members that were away find it begin above their"
            " own; 0: all of it.",
            min=0,
        ),
    ] = 0,
    snapshot_bytes: Annotated[
        int,
        typer.Option(
            help="What the members' state machine saves, every 50 commands; with --retention a wiped"
            " member gets that, and then the log.",
            min=0,
        ),
    ] = SNAPSHOT_BYTES,
    folder: Annotated[
        Path, typer.Option("--dir", help="Histories, timeline, data directories; made anew.")
    ] = Path("nemesis-out"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data directories afterwards.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Members and clients speak TLS.")] = False,
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed",
            help="With the release before: one member and one client begin with it, and whenever a"
            " member starts again either release is drawn.",
        ),
    ] = False,
) -> None:
    """Break a real cluster in every way, and check that no client was ever lied to."""
    # Client processes load this module too, and need nothing of what draws and reports.
    from nemesis.run import MEMBERS_NAME, TIMELINE_NAME, Options, run

    end_as_ctrl_c_does()
    if tls and mixed:
        raise typer.BadParameter("the release before does not speak TLS")
    if tls:
        encrypt(Path(tempfile.mkdtemp(prefix="nemesis-tls-")))
    if members % 2 == 0:
        raise typer.BadParameter("an even number of members survives no more than one fewer")
    console = Console()
    chosen_seed = random.randrange(1 << 32) if seed is None else seed
    options = Options(
        folder,
        minutes,
        rounds,
        hold,
        members,
        chosen_seed,
        tuple(fault or ()),
        clients,
        rate,
        retention,
        snapshot_bytes,
        mixed,
    )
    try:
        report = run(options, lambda line: console.print(line, highlight=False, markup=False))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    report.print(console)
    console.print(f"Histories and timeline: {folder}, {folder / TIMELINE_NAME}")
    if report.violations:
        console.print(f"The data directories are kept; to see it again: --seed {chosen_seed}")
        raise typer.Exit(EXIT_VIOLATION)
    if not keep:
        shutil.rmtree(folder / MEMBERS_NAME)


if __name__ == "__main__":
    typer.run(main)
