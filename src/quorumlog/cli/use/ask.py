"""quorumlog ask: a question to a state machine."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import print_json
from quorumlog.cli.use.machine_results import as_text, row_of


def ask(
    servers: Servers,
    name: Annotated[str, typer.Argument(help="Name of the state machine.", metavar="NAME")],
    question: Annotated[
        str, typer.Argument(help="What it is asked; empty if left out.", metavar="QUESTION")
    ] = "",
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> None:
    """Ask a state machine; print its answer, which follows from all that was acknowledged before.

    An answer that is no text is printed in base64.

    Example: quorumlog ask --servers 127.0.0.1:20911 counter
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        answer = log.ask(name, question.encode())
    if json:
        row = row_of(answer)
        print_json({key.replace("result", "answer"): value for key, value in row.items()})
    else:
        typer.echo(as_text(answer))
