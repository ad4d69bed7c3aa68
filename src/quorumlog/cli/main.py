"""The `quorumlog` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quorumlog.cli.broker.broker_app import broker_app
from quorumlog.cli.carry.backup import backup
from quorumlog.cli.carry.export import export
from quorumlog.cli.carry.import_file import import_file
from quorumlog.cli.carry.restore import restore
from quorumlog.cli.kv.app import kv_app
from quorumlog.cli.look.inspect import inspect
from quorumlog.cli.look.recover import recover
from quorumlog.cli.look.verify import verify
from quorumlog.cli.manage.ca import ca_app
from quorumlog.cli.manage.clock import clock_app
from quorumlog.cli.manage.machine import machine_app
from quorumlog.cli.manage.member import member_app
from quorumlog.cli.manage.producers import producers_app
from quorumlog.cli.manage.readers import readers_app
from quorumlog.cli.manage.transfer import transfer
from quorumlog.cli.manage.upgrade import upgrade_app
from quorumlog.cli.manage.why_kept import why_kept
from quorumlog.cli.measure.bench import bench_app
from quorumlog.cli.output import ReportingGroup
from quorumlog.cli.pipeline.commands import pipeline_app
from quorumlog.cli.run.dev import dev
from quorumlog.cli.run.serve import serve
from quorumlog.cli.use.append import append
from quorumlog.cli.use.ask import ask
from quorumlog.cli.use.read import read
from quorumlog.cli.use.status import status
from quorumlog.version import DESCRIPTION

app = typer.Typer(
    name="quorumlog",
    cls=ReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # rich lays help out in frames, and loads for longer than everything else together.
    rich_markup_mode=None,
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
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A Raft-replicated commit log: run it, write to it, read it, look inside."""


RUN, USE, CARRY = "Run a cluster", "Use a log", "Carry a log elsewhere"
LOOK = "Look at a data directory"
MESSAGES = "Store messages"

app.command(rich_help_panel=RUN)(serve)
app.command(rich_help_panel=RUN)(dev)
app.command(rich_help_panel=USE)(append)
app.command(rich_help_panel=USE)(read)
app.command(rich_help_panel=USE)(ask)
app.command(rich_help_panel=USE)(status)
app.command(rich_help_panel=USE)(transfer)
app.add_typer(readers_app, name="readers", rich_help_panel=USE)
app.command("why-kept", rich_help_panel=USE)(why_kept)
app.add_typer(producers_app, name="producers", rich_help_panel=USE)
app.add_typer(member_app, name="member", rich_help_panel=USE)
app.add_typer(clock_app, name="clock", rich_help_panel=USE)
app.add_typer(upgrade_app, name="upgrade", rich_help_panel=USE)
app.add_typer(machine_app, name="machine", rich_help_panel=USE)
app.add_typer(ca_app, name="ca", rich_help_panel=USE)
app.add_typer(kv_app, name="kv", rich_help_panel=USE)
app.add_typer(bench_app, name="bench", rich_help_panel=USE)
app.add_typer(broker_app, name="broker", rich_help_panel=MESSAGES)
app.command(rich_help_panel=CARRY)(export)
app.command("import", rich_help_panel=CARRY)(import_file)
app.command(rich_help_panel=CARRY)(backup)
app.command(rich_help_panel=CARRY)(restore)
app.add_typer(pipeline_app, name="pipeline", rich_help_panel=CARRY)
app.command(rich_help_panel=LOOK)(inspect)
app.command(rich_help_panel=LOOK)(verify)
app.command(rich_help_panel=LOOK)(recover)


def main() -> None:
    _leave_out_all_but(sys.argv[1] if len(sys.argv) > 1 else "")
    app()


def _leave_out_all_but(name: str) -> None:
    """typer works out the options of every command there is before it runs one, which takes longer than
    most of them. A name that is none leaves all, for the help and for what was meant."""
    commands = [
        info
        for info in app.registered_commands
        if info.callback is not None and name == (info.name or info.callback.__name__)
    ]
    groups = [info for info in app.registered_groups if info.name == name]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


if __name__ == "__main__":
    main()
