"""quorumlog transfer: hand leadership to a member."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import print_json
from quorumlog.errors import ConfigError, TransferFailed


def transfer(
    servers: Servers,
    to: Annotated[str, typer.Option("--to", help="Id of the member that should lead.", metavar="ID")],
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> None:
    """Hand leadership to another member; returns when it leads. Appends wait meanwhile, none is lost.

    Status 0 too if that member leads already.

    Example: quorumlog transfer --servers 127.0.0.1:20911 --to n1
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect, leader_of

    split_servers(servers)
    if not to.strip():
        raise ConfigError(f"--to {to!r} names no member; write its id, as in --to n1")
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        said = "leads"
        try:
            leader_id = log.transfer(to)
        except TransferFailed:
            # Asked only now: the common case needs no second question, and what counts is the state
            # that was asked for.
            rows = log.status()
            leader = leader_of(rows)
            ids = sorted({row.id for row in rows if row.id})
            if leader is not None and to not in ids:
                raise TransferFailed(
                    f"--to {to} is no member of this group; name one of {', '.join(ids)}"
                ) from None
            if leader is None or leader.id != to:
                raise
            leader_id, said = to, "leads already"
    if json:
        print_json({"leader_id": leader_id})
    else:
        typer.echo(f"{leader_id} {said}")
