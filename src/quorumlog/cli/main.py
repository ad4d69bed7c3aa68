"""The `quorumlog` command."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.append import append
from quorumlog.cli.bench import bench_app
from quorumlog.cli.dev import dev
from quorumlog.cli.flush_cost import flush
from quorumlog.cli.inspect import inspect
from quorumlog.cli.output import ReportingGroup
from quorumlog.cli.read import read
from quorumlog.cli.recover import recover
from quorumlog.cli.serve import serve
from quorumlog.cli.sim import sim
from quorumlog.cli.status import status
from quorumlog.cli.transfer import transfer
from quorumlog.cli.verify import verify
from quorumlog.version import DESCRIPTION

app = typer.Typer(
    name="quorumlog",
    cls=ReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(DESCRIPTION)
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """A Raft-replicated commit log: run it, write to it, read it, look inside."""


RUN, USE, LOOK = "Run a cluster", "Use a log", "Look at a data directory"

app.command(rich_help_panel=RUN)(serve)
app.command(rich_help_panel=RUN)(dev)
app.command(rich_help_panel=USE)(append)
app.command(rich_help_panel=USE)(read)
app.command(rich_help_panel=USE)(status)
app.command(rich_help_panel=USE)(transfer)
bench_app.command()(flush)
app.add_typer(bench_app, name="bench", rich_help_panel=USE)
app.command(rich_help_panel=LOOK)(inspect)
app.command(rich_help_panel=LOOK)(verify)
app.command(rich_help_panel=LOOK)(recover)
app.command(rich_help_panel=LOOK)(sim)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
