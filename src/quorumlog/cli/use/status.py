"""quorumlog status: a row a member, also when some or all are down."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.options import MAX_TIMEOUT_S, Group, Json, Servers, split_servers
from quorumlog.cli.output import EXIT_REFUSED, print_json
from quorumlog.config import DEFAULT_GROUP

KEYS = (
    "id",
    "address",
    "reachable",
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
    "waits_for",
    "problem",
    "problems",
)


def status(
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    timeout: Annotated[
        float,
        typer.Option(
            help="A member silent for so many seconds counts as down.", min=0.1, max=MAX_TIMEOUT_S
        ),
    ] = 1.0,
    json: Json = False,
) -> None:
    """Show every member: role, term, log range, committed index and how far it is behind the leader.

    Status 1 if no member tells its state.

    Example: quorumlog status --servers 127.0.0.1:20911,127.0.0.1:20912,127.0.0.1:20913
    """
    from quorumlog.cli.use.status_table import print_table, told
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group) as log:
        rows = log.status(timeout_ms=timeout * 1000)
    if json:
        for row in rows:
            print_json({key: told(row, key) for key in KEYS})
    else:
        print_table(rows)
    if not any(row.reachable for row in rows):
        raise typer.Exit(EXIT_REFUSED)
