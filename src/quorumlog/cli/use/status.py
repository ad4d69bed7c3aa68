"""quorumlog status: a row a member, also when some or all are down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, split_servers
from quorumlog.cli.output import EXIT_REFUSED, out, print_json
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.client import MemberStatusRow

KEYS = (
    "id",
    "address",
    "reachable",
    "release",
    "role",
    "term",
    "leader_id",
    "ledger_begin_index",
    "ledger_end_index",
    "committed_index",
    "damaged_entries",
    "scrub_next_index",
    "scrub_stop_index",
    "scrub_passes",
    "scrub_ended_ms_ago",
    "set_aside_files",
    "set_aside_bytes",
    "log_disk_bytes",
    "log_apparent_bytes",
    "producers",
    "machines",
    "feeding",
    "answers",
    "log_time_ms",
    "log_time_index",
    "waits_for",
    "problem",
    "problems",
)


def status(
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    timeout: Annotated[
        float,
        typer.Option(help="A member silent for so many seconds counts as down.", min=0.1),
    ] = 1.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="For scripts: status 0 if the group is whole, 1 if it is degraded, 2 if nobody leads.",
        ),
    ] = False,
    readers: Annotated[
        bool,
        typer.Option(
            "--readers",
            help="The readers that the cluster keeps by name instead, with how far each is behind.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show every member: role, term, log range, committed index and how far it is behind the leader.

    Status 1 if no member tells its state; with --check the status tells how the group is. Columns that
    do not fit into the terminal are left out, the least important one first. With --readers it shows
    what `quorumlog readers list` does.

    Example: quorumlog status --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.readers_table import print_readers
    from quorumlog.cli.use.status_table import WATCH_S, health_of, watch_status
    from quorumlog.client import connect

    split_servers(servers)
    if watch and check:
        raise ConfigError("--watch and --check exclude each other; one goes on, the other is an answer")
    if watch and not json and not out().is_terminal:
        raise ConfigError("--watch needs a terminal; --watch --json goes on in a pipe, too")
    if readers:
        if watch or check:
            raise ConfigError("--readers shows them once: leave out --watch and --check")
        with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
            print_readers(log.readers(), json=json)
        return
    with connect(servers, group=group) as log:

        def look() -> list[MemberStatusRow]:
            return log.status(timeout_ms=timeout * 1000)

        if watch and not json:
            watch_status(look)
        rows = look()
        _print(rows, json=json)
        while watch:
            time.sleep(WATCH_S)
            _print(look(), json=json)
    if check:
        raise typer.Exit(health_of(rows))
    if not any(row.reachable for row in rows):
        raise typer.Exit(EXIT_REFUSED)


def _print(rows: list[MemberStatusRow], *, json: bool) -> None:
    from quorumlog.cli.use.status_table import print_status, told

    if json:
        for row in rows:
            print_json({key: told(row, key) for key in KEYS})
    else:
        print_status(rows)
