"""quorumlog producers: who appends under numbers of its own, and what of each is in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import CommandGroup, note, print_json, print_table
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.wire.producer_messages import ProducerInfo

producers_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)

Producer = Annotated[str, typer.Argument(help="Id of the producer.", metavar="ID")]


@producers_app.callback()
def producers() -> None:
    """The producers that a log remembers, who appended each entry once: list, show or forget them, or
    finish what a Spark sink has left.

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
    if json:
        for each in found:
            print_json(_row(each))
        return
    if not found:
        note("no producers")
        return
    print_table(
        {"producer": False, "last sequence": True, "last index": True},
        [(_printable(each.producer), *_known(each.last_sequence, each.last_index)) for each in found],
    )


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


@producers_app.command("resume")
def resume_producer(
    servers: Servers,
    producer: Producer,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Finish what a Spark sink with this producerId has left: rows of a batch that is committed, and not
    in the log yet, come into it. May be repeated, and while the query runs.

    Example: quorumlog producers resume --servers 127.0.0.1:20911 copy
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect
    from quorumlog.config import staging_name
    from quorumlog.staging import SinkCommits, open_sink_logs

    split_servers(servers)
    timeout_ms = int(timeout * 1000)
    with connect(servers, group=group, timeout_ms=timeout_ms) as log:
        refuse_dead_servers(log, timeout)
    with open_sink_logs(servers, group, timeout_ms) as logs:
        resumed = SinkCommits(logs, producer).resume()
    if resumed is None:
        raise ConfigError(
            f"no sink has committed a batch as {producer} beside group {group}; quorumlog producers list"
            f" --group {staging_name(group)} shows who has"
        )
    batch, was_finished = resumed.standing.batch, resumed.was_finished
    if json:
        row = {"producer": producer, "query": batch.query_id, "batch": batch.batch_id}
        print_json({**row, "rows": batch.rows, "resumed": not was_finished})
        return
    did = "was in the log already" if was_finished else "is in the log now"
    typer.echo(f"{producer}: {batch.described}, {batch.rows} rows, {did}")


def _row(known: ProducerInfo) -> dict[str, object]:
    return {
        "producer": known.producer,
        "last_sequence": known.last_sequence,
        "last_index": known.last_index,
        "epoch": {"index": known.epoch.index, "term": known.epoch.term},
    }


def _printable(name: str) -> str:
    """Any text is an id: one with a line break would look like two producers."""
    return name if name.isprintable() else ascii(name)


def _known(*numbers: int) -> list[int | None]:
    return [number if number >= 0 else None for number in numbers]


def _line(known: ProducerInfo) -> str:
    name = _printable(known.producer)
    if known.last_sequence < 0:
        return f"{name}: nothing is in the log"
    where = f", at index {known.last_index}" if known.last_index >= 0 else ""
    return f"{name}: last sequence {known.last_sequence}{where}"
