"""quorumlog clock: the time of a log, where clocks were wrong."""

from __future__ import annotations

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import CommandGroup, print_json

clock_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@clock_app.callback()
def clock() -> None:
    """The time of a log, which the clocks of a quorum say: begin it anew where they were wrong.

    Example: quorumlog clock reset --servers 127.0.0.1:20911
    """


@clock_app.command("reset")
def reset_clock(
    servers: Servers, group: Group = DEFAULT_GROUP, timeout: Timeout = 10.0, json: Json = False
) -> None:
    """Let the log take the time of the members' clocks, once they are right again. What was appended
    before counts as appended now at the latest: too young, never too old.

    Refused while the clocks of a quorum differ by more than a minute, and while a member is of a release
    that does not know such an entry.

    Example: quorumlog clock reset --servers 127.0.0.1:20911
    """
    from quorumlog.append_times import time_of
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        reset = log.reset_clock()
    if json:
        print_json({"index": reset.index, "time_ms": reset.time_ms})
        return
    time = time_of(reset.time_ms)
    at = f"{reset.time_ms} ms since 1970" if time is None else f"{time:%Y-%m-%d %H:%M:%SZ}"
    typer.echo(f"the log's time begins anew at {at}, with entry {reset.index}")
