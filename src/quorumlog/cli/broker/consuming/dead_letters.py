"""quorumlog broker dlq: messages that a consumer group could not work off."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, Server
from quorumlog.cli.broker.message_rows import message_row, spoken_time
from quorumlog.cli.options import Json, Timeout
from quorumlog.cli.output import CommandGroup, print_json, print_table, say
from quorumlog.errors import ConfigError

TIMEOUT_S = 10.0
Name = Annotated[str, typer.Argument(help="Name of the consumer group.", metavar="GROUP")]

dlq_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@dlq_app.callback()
def dlq() -> None:
    """Dead letters: messages that failed again and again, and what they failed with.

    Example: quorumlog broker dlq list billing
    """


@dlq_app.command("list")
def list_(
    group: Name,
    begin: Annotated[
        int, typer.Option("--from", help="First offset to show.", min=0, metavar="OFFSET")
    ] = 0,
    most: Annotated[int, typer.Option("--most", help="Show so many at most.", min=1, metavar="N")] = 100,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Dead letters of a group, each with its cause.

    Example: quorumlog broker dlq list billing --most 10
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        letters = admin.dead_letters(group, begin, most_messages=most)
    if json:
        for letter in letters:
            print_json(message_row(letter))
        return
    print_table(
        {
            "offset": True,
            "topic": False,
            "keys": False,
            "attempts": True,
            "stored": False,
            "cause": False,
        },
        [
            (
                letter.queue_offset,
                letter.properties.get("RETRY_TOPIC"),
                " ".join(letter.keys) or None,
                letter.reconsume_times,
                spoken_time(letter.store_time_ms),
                letter.properties.get("DLQ_CAUSE"),
            )
            for letter in letters
        ],
    )


@dlq_app.command()
def resend(
    group: Name,
    offset: Annotated[
        list[int] | None,
        typer.Option("--offset", help="This one; may be repeated.", min=0, metavar="OFFSET"),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    begin: Annotated[
        int, typer.Option("--from", help="With --all: first offset to send.", min=0, metavar="OFFSET")
    ] = 0,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Send dead letters to their group again, as if for the first time. They stay in the list: go on
    with --from behind the last one that was sent.

    Example: quorumlog broker dlq resend billing --offset 3 --offset 5
    """
    from quorumlog.broker import BrokerAdmin

    if bool(offset) == all_:
        raise ConfigError("say which to send again: --offset N for each, or --all")
    sent = 0
    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        if offset:
            sent = admin.resend(group, offset)
        while all_ and (letters := admin.dead_letters(group, begin)):
            sent += admin.resend(group, [letter.queue_offset for letter in letters])
            begin = letters[-1].queue_offset + 1
    if json:
        print_json({"group": group, "sent": sent, "next": begin if all_ else None})
        return
    say(
        f"{sent} dead letters of {group} are sent again" + (f"; the next one is {begin}" if all_ else "")
    )
