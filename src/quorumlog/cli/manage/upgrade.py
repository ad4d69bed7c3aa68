"""quorumlog upgrade: which releases a group runs, and the end of the way back."""

from __future__ import annotations

from typing import Any

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import CommandGroup, print_json, print_table

upgrade_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@upgrade_app.callback()
def upgrade() -> None:
    """The end of an upgrade: what the log may have once no member is to go back to the release before.

    Example: quorumlog upgrade status --servers 127.0.0.1:20911
    """


@upgrade_app.command("status")
def upgrade_status(
    servers: Servers, group: Group = DEFAULT_GROUP, timeout: Timeout = 10.0, json: Json = False
) -> None:
    """Show the release of each member, the level of the log's format that it knows, and that of the log.

    Example: quorumlog upgrade status --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect, leader_of

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        rows = log.status()
    leader = leader_of(rows)
    if leader is not None:  # one that was removed may be named by --servers
        members = {member.id for member in leader.members}
        rows = [row for row in rows if row.id in members]
    log_level = max((row.log_level for row in rows), default=-1)
    levels = [row.level if row.reachable else -1 for row in rows]
    if json:
        found: list[dict[str, Any]] = [
            {"id": row.id, "release": row.version or None, "level": level if level >= 0 else None}
            for row, level in zip(rows, levels, strict=True)
        ]
        print_json({"level": log_level if log_level >= 0 else None, "members": found})
        return
    print_table(
        {"id": False, "release": False, "level": True},
        [
            (row.id, row.version or "no answer", level if level >= 0 else "not told")
            for row, level in zip(rows, levels, strict=True)
        ],
    )
    typer.echo(_what_to_do(log_level, levels))


def _what_to_do(log_level: int, levels: list[int]) -> str:
    if log_level < 0:
        return "The level of the log is not known: no member that knows it answers."
    here = f"The log may have entries of level {log_level}"
    if min(levels) < 0:
        return f"{here}. Start every member with this release, then ask again."
    if log_level >= min(levels):
        return f"{here}: there is nothing to finish."
    return (
        f"{here}, and all members know level {min(levels)}: quorumlog upgrade finish lets it have those,"
        " and no member goes back to the release before."
    )


@upgrade_app.command("finish")
def finish_upgrade(
    servers: Servers, group: Group = DEFAULT_GROUP, timeout: Timeout = 10.0, json: Json = False
) -> None:
    """Let the log have entries that earlier releases do not know. From then on no member can go back.

    Refused while a member or learner has not told that it runs this release. A group that was formed by
    this release needs it not.

    Example: quorumlog upgrade finish --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        level = log.finish_upgrade()
    if json:
        print_json({"level": level})
        return
    typer.echo(f"the log may have entries of level {level}; no member can go back to the release before")
