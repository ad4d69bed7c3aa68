"""quorumlog recover: an operator's decision about a directory that forgot what it had promised."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.options import Directory, check_directory
from quorumlog.cli.output import note


def recover(
    directory: Directory,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Make an unreadable hard state or durable point again, keeping what the log still holds.

    Only for a group of one member; refused in a larger one: there the member is started as it is, comes
    back as an observer and is fed by the others. Acknowledged entries that the disk lost stay lost.

    Example: quorumlog recover /var/lib/quorumlog
    """
    from quorumlog.store.directory.directory_recovery import (
        check_recoverable,
        nothing_to_do,
        recover_directory,
    )
    from quorumlog.store.disk import OsDisk

    path = check_directory(directory)
    if not check_recoverable(OsDisk(), path):
        typer.echo(nothing_to_do(path))
        return
    if not yes:
        note("What the log still holds will count as the truth; what the disk has lost stays lost.")
        typer.confirm(f"Recover {path}?", abort=True, err=True)
    for line in recover_directory(OsDisk(), path):
        typer.echo(line)
