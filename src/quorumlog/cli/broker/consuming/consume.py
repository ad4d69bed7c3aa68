"""quorumlog broker consume: a member of a consumer group in a terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, ConsumerGroup, Server, Topic
from quorumlog.cli.broker.message_rows import message_line, message_row
from quorumlog.cli.options import Json, Timeout, time_ms_of
from quorumlog.cli.output import print_json, say

TIMEOUT_S = 10.0


def consume(
    topic: Topic,
    group: ConsumerGroup,
    tags: Annotated[
        str, typer.Option("--tags", help="Only messages with these: 'a || b'.", metavar="TAGS")
    ] = "*",
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where to begin if the group has committed nothing: earliest, latest, or a time.",
            metavar="PLACE",
        ),
    ] = "earliest",
    most: Annotated[
        int | None,
        typer.Option("--most", help="End after so many messages.", min=1, metavar="N"),
    ] = None,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle", help="End once nothing came for so many seconds.", min=0.1, metavar="SECONDS"
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Print the messages of a topic, and commit what is printed. Members of a group share its queues.

    Example: quorumlog broker consume --topic orders --group billing --from latest
    """
    import time

    from quorumlog.broker import Consumer

    place = begin if begin in ("earliest", "latest") else float(time_ms_of(begin, "--from"))
    left = most
    with Consumer(server, group, {topic: tags}, begin=place, timeout_ms=int(timeout * 1000)) as consumer:
        last = time.monotonic()
        while left is None or left > 0:
            messages = consumer.poll(most_messages=min(left or 100, 100), wait_ms=500)
            for message in messages:
                if json:
                    print_json(message_row(message))
                else:
                    say(message_line(message))
            if messages:
                consumer.commit()
                last = time.monotonic()
                left = None if left is None else left - len(messages)
            elif until_idle is not None and time.monotonic() - last >= until_idle:
                return
