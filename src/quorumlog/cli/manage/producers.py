"""quorumlog producers: who appends under numbers of its own, and what of each is in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import print_json

if TYPE_CHECKING:
    from quorumlog.wire.producer_messages import ProducerInfo

producers_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Producer = Annotated[str, typer.Argument(help="Id of the producer.", metavar="ID")]


@producers_app.callback()
def producers() -> None:
    """The producers that a log remembers, who appended each entry once: list, show or forget them.

    Example: quorumlog producers list --servers 127.0.0.1:20911
    """


@producers_app.command("list")
def list_producers(
    servers: Servers, group: Group = DEFAULT_GROUP, timeout: Timeout = 10.0, json: Json = False
) -> None:
    """List all, by id: the number and the index of the last entry of each. An id with ~ is of a client
    without a name, and may be forgotten for another. With --json an object a line.

    Example: quorumlog producers list --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        found = log.producers()
    for each in found:
        if json:
            print_json(_row(each))
        else:
            typer.echo(_line(each))
    if not found and not json:
        typer.echo("no producers", err=True)


@producers_app.command("show")
def show_producer(
    servers: Servers,
    producer: Producer,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> None:
    """Show one: where it goes on after a restart.

    Example: quorumlog producers show --servers 127.0.0.1:20911 orders
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        known = log.producer(producer)
    if json:
        print_json(_row(known))
    else:
        typer.echo(_line(known))


@producers_app.command("forget")
def forget_producer(
    servers: Servers,
    producer: Producer,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> None:
    """End one for good. Whoever is connected as it may append nothing more; the next one begins with
    sequence 0, and what it repeats is appended again.

    Example: quorumlog producers forget --servers 127.0.0.1:20911 orders
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        known = log.forget_producer(producer)
    if json:
        print_json(_row(known))
    else:
        typer.echo(f"forgotten: {_line(known)}")


def _row(known: ProducerInfo) -> dict[str, object]:
    return {
        "producer": known.producer,
        "last_sequence": known.last_sequence,
        "last_index": known.last_index,
        "epoch": {"index": known.epoch.index, "term": known.epoch.term},
    }


def _line(known: ProducerInfo) -> str:
    if known.last_sequence < 0:
        return f"{known.producer}: nothing is in the log"
    where = f", at index {known.last_index}" if known.last_index >= 0 else ""
    return f"{known.producer}: last sequence {known.last_sequence}{where}"
