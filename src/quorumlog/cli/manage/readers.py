"""quorumlog readers: readers that the cluster keeps by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    Group,
    Json,
    Servers,
    Timeout,
    below_64_bits,
    split_servers,
)
from quorumlog.cli.output import note, out, print_json, spoken_duration
from quorumlog.errors import UnknownReader

if TYPE_CHECKING:
    from quorumlog.client import LedgerClient, ReaderRow

readers_app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, subcommand_metavar="list|show|seek|forget"
)

TIMEOUT_S = 10.0
Name = Annotated[str, typer.Argument(help="Name of a reader.", metavar="NAME", show_default=False)]
_HOLDS = {False: "-", True: "held", "archive": "archive"}


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
    with _connected(servers, group, timeout) as log:
        rows = log.readers()
    _print(rows, json=json)
    if not rows and not json:
        note("the cluster keeps no reader")


@readers_app.command()
def show(
    name: Name,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show one reader, and what it has lost.

    Example: quorumlog readers show billing --servers 127.0.0.1:20911
    """
    with _connected(servers, group, timeout) as log:
        row = _row_of(log, name)
    _print([row], json=json)
    if not json:
        for first_index, stop_index in row.lost_ranges:
            typer.echo(f"lost: entries {first_index} to {stop_index - 1}, when a disk was nearly full")


@readers_app.command()
def seek(
    name: Name,
    servers: Servers,
    to: Annotated[
        int,
        typer.Option(
            "--to", help="Index of the entry to go on with.", min=0, metavar="N", callback=below_64_bits
        ),
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
    rows = {row.name: row for row in log.readers()}
    if name not in rows:
        known = f"the cluster keeps {', '.join(rows)}" if rows else "the cluster keeps none"
        raise UnknownReader(f"there is no reader {name}; {known}")
    return rows[name]


def _print(rows: list[ReaderRow], *, json: bool) -> None:
    if json:
        for row in rows:
            print_json(
                {
                    "name": row.name,
                    "position": row.position,
                    "hold": row.hold,
                    "lag_entries": row.lag_entries,
                    "lag_ms": row.lag_ms,
                    "lost_ranges": row.lost_ranges,
                }
            )
        return
    if not rows:
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "position", "behind", "time behind", "hold", "lost"):
        justify = "left" if heading in ("name", "hold") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        behind = "-" if row.lag_ms < 0 else spoken_duration(row.lag_ms)
        lost = sum(stop - first for first, stop in row.lost_ranges)
        table.add_row(
            row.name,
            str(row.position),
            str(row.lag_entries),
            behind,
            _HOLDS[row.hold],
            str(lost) if lost else "-",
        )
    out().print(table)
