"""quorumlog machine: what a state machine of a log is to do without."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import CommandGroup, print_json
from quorumlog.errors import OutcomeUnknown

machine_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)

MOST_INDEX = 2**62


@machine_app.callback()
def machine() -> None:
    """State machines of a log: step-over.

    Example: quorumlog machine step-over counter 4711 --servers 127.0.0.1:20911
    """


@machine_app.command("step-over")
def step_over(
    name: Annotated[
        str, typer.Argument(help="Name of the state machine.", metavar="NAME", show_default=False)
    ],
    index: Annotated[
        int,
        typer.Argument(
            help="Index of the entry.", metavar="INDEX", min=0, max=MOST_INDEX, show_default=False
        ),
    ],
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Also if a member has applied it, whose machine is built anew, or does not answer.",
        ),
    ] = False,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> None:
    """Have a state machine leave an entry out that no member survives, on all members and for good.

    Members that it has ended are started with --hold-machine NAME first, and without it afterwards.

    Example: quorumlog machine step-over counter 4711 --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    until_s = time.monotonic() + timeout
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        while True:
            try:
                ordered_at = log.step_over(name, index, unsafe=unsafe)
                break
            except OutcomeUnknown:
                if time.monotonic() >= until_s:  # asked again, it is done once
                    raise
    if json:
        print_json({"machine": name, "index": index, "ordered_at_index": ordered_at})
    else:
        typer.echo(f"{name} leaves out entry {index}, by entry {ordered_at}")
