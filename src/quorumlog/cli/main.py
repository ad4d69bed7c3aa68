"""The `quorumlog` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quorumlog.cli.bench import bench_app
from quorumlog.cli.broker.broker_app import broker_app
from quorumlog.cli.carry.backup import backup, restore
from quorumlog.cli.carry.export import export
from quorumlog.cli.carry.import_file import import_file
from quorumlog.cli.kafka.app import kafka_app
from quorumlog.cli.kv.app import kv_app
from quorumlog.cli.log.append import append, ask
from quorumlog.cli.log.ca import ca_app
from quorumlog.cli.log.members import clock_app, machine_app, member_app, reload, transfer, upgrade_app
from quorumlog.cli.log.producers import producers_app
from quorumlog.cli.log.read import read
from quorumlog.cli.log.status import readers_app, status
from quorumlog.cli.log.users import grant, init_admin, revoke, role_app, user_app, who_can
from quorumlog.cli.log.why import why_app
from quorumlog.cli.look import inspect, recover, verify
from quorumlog.cli.options import App
from quorumlog.cli.output import ReportingGroup, named_now
from quorumlog.cli.pipeline import pipeline_app
from quorumlog.cli.run.dev import dev
from quorumlog.cli.run.serve import serve
from quorumlog.version import DESCRIPTION

app = App(
    name="quorumlog",
    cls=ReportingGroup,
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

app.command(rich_help_panel=RUN, has_json=False)(serve)
app.command(rich_help_panel=RUN)(dev)
app.command("init-admin", rich_help_panel=RUN)(init_admin)
app.command(rich_help_panel=USE, timeout_s=30.0)(append)
app.command(rich_help_panel=USE, timeout_s=30.0)(read)
app.command(rich_help_panel=USE)(ask)
app.command(
    rich_help_panel=USE,
    timeout_s=1.0,
    timeout_help="A member silent for this many seconds counts as down.",
)(status)
app.command(rich_help_panel=USE)(transfer)
app.command(rich_help_panel=RUN)(reload)
for name, group in (
    ("readers", readers_app),
    ("why", why_app),
    ("producers", producers_app),
    ("member", member_app),
    ("clock", clock_app),
    ("upgrade", upgrade_app),
    ("machine", machine_app),
    ("user", user_app),
    ("role", role_app),
):
    app.add_typer(group, name=name, rich_help_panel=USE)
app.command(rich_help_panel=USE)(grant)
app.command(rich_help_panel=USE)(revoke)
app.command("who-can", rich_help_panel=USE)(who_can)
for name, group in (("ca", ca_app), ("kafka", kafka_app), ("kv", kv_app), ("bench", bench_app)):
    app.add_typer(group, name=name, rich_help_panel=USE)
app.add_typer(broker_app, name="broker", rich_help_panel=MESSAGES)
app.command(rich_help_panel=CARRY, timeout_s=30.0)(export)
app.command("import", rich_help_panel=CARRY, timeout_s=30.0)(import_file)
app.command(rich_help_panel=CARRY, timeout_s=30.0)(backup)
app.command(rich_help_panel=CARRY)(restore)
app.add_typer(pipeline_app, name="pipeline", rich_help_panel=CARRY)
app.commands(inspect, verify, recover, rich_help_panel=LOOK)


def main() -> None:
    sys.argv[1:] = named_now(sys.argv[1:])
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
