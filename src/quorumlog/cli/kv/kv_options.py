"""Options that the commands of the store share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import Timeout

if TYPE_CHECKING:
    from quorumlog.kv import KeyValueClient

Servers = Annotated[
    str,
    typer.Option(
        "--servers",
        help="Where the members' stores listen, HOST:PORT,HOST:PORT,...",
        envvar="QUORUMLOG_KV_SERVERS",
        metavar="LIST",
    ),
]
Key = Annotated[str, typer.Argument(help="A key.", metavar="KEY", show_default=False)]
Prefix = Annotated[bool, typer.Option("--prefix", help="All keys that begin so.")]
PrevKv = Annotated[bool, typer.Option("--prev-kv", help="Also what was there before.")]
TIMEOUT_S = 10.0


def range_or_prefix(end: str | None, prefix: bool) -> None:
    """Neither is left out in silence: it may be a deletion."""
    if end is not None and prefix:
        raise typer.BadParameter("END and --prefix exclude each other: give one of them")


__all__ = [
    "TIMEOUT_S",
    "Key",
    "Prefix",
    "PrevKv",
    "Servers",
    "Timeout",
    "connected",
    "range_or_prefix",
]


def connected(servers: str, timeout: float) -> KeyValueClient:
    from quorumlog.cli.options import split_servers
    from quorumlog.kv import connect

    return connect(",".join(split_servers(servers)), timeout_s=timeout)
