"""quorumlog readers: readers that the cluster keeps by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    Group,
    Json,
    Servers,
    Timeout,
    split_servers,
)
from quorumlog.cli.output import CommandGroup, print_json
from quorumlog.errors import BadRequest, UnknownReader

if TYPE_CHECKING:
    from quorumlog.client import LedgerClient, ReaderRow

readers_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)

TIMEOUT_S = 10.0
Name = Annotated[str, typer.Argument(help="Name of a reader.", metavar="NAME", show_default=False)]


@readers_app.callback()
def readers() -> None:
    """List, show, move and forget readers that the cluster keeps by name (`read --reader NAME`).

    Example: quorumlog readers list --servers 127.0.0.1:20911
    """


@readers_app.command("list")
def list_readers(
    servers: Servers, group: Group = DEFAULT_GROUP, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """Show every reader: where it stands, how far it is behind, and whether it holds what it lacks.

    Example: quorumlog readers list --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.readers_table import print_readers

    with _connected(servers, group, timeout) as log:
        print_readers(log.readers(), json=json)


@readers_app.command()
def show(
    name: Name,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show one reader, and what it has lost or skipped.

    Example: quorumlog readers show billing --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.readers_table import print_readers

    with _connected(servers, group, timeout) as log:
        row = _row_of(log, name)
    print_readers([row], json=json)
    if not json:
        for first_index, stop_index in row.lost_ranges:
            typer.echo(f"lost: entries {first_index} to {stop_index - 1}, when a disk was nearly full")
        for first_index, stop_index in row.skipped_ranges:
            typer.echo(f"skipped: entries {first_index} to {stop_index - 1}, gone when it came to them")


@readers_app.command()
def seek(
    name: Name,
    servers: Servers,
    to: Annotated[
        int,
        typer.Option("--to", help="Index of the entry to go on with.", min=0, metavar="N"),
    ],
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have a reader go on somewhere else, back as well. A consumer that runs takes it in when it begins.

    Example: quorumlog readers seek billing --to 1200 --servers 127.0.0.1:20911
    """
    with _connected(servers, group, timeout) as log:
        old = _row_of(log, name).position
        position = log.reader(name).seek(to)
    if json:
        print_json({"name": name, "position": position, "replaced": old})
    else:
        typer.echo(f"{name} goes on at {position}, and stood at {old}")


@readers_app.command()
def forget(
    name: Name,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Forget a reader and what it holds; one of the same name begins anew.

    Example: quorumlog readers forget billing --servers 127.0.0.1:20911
    """
    with _connected(servers, group, timeout) as log:
        row = _row_of(log, name)
        log.reader(name).end()
    if json:
        print_json({"name": name, "position": row.position})
    else:
        typer.echo(f"{name} is forgotten, and stood at {row.position}")


def _connected(servers: str, group: str, timeout: float) -> LedgerClient:
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    log = connect(servers, group=group, timeout_ms=int(timeout * 1000))
    try:
        refuse_dead_servers(log, timeout)
    except BaseException:
        log.close()
        raise
    return log


def _row_of(log: LedgerClient, name: str) -> ReaderRow:
    from quorumlog.log_state.control_entries import READER_NAME, READER_NAMES

    if not re.match(READER_NAME, name):
        raise BadRequest(READER_NAMES.format(name))
    rows = {row.name: row for row in log.readers()}
    if name not in rows:
        known = f"the cluster keeps {', '.join(rows)}" if rows else "the cluster keeps none"
        raise UnknownReader(f"there is no reader {name}; {known}")
    return rows[name]
