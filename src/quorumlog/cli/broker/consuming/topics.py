"""quorumlog broker topic: topics while brokers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, Server, TopicName, duration_ms_of
from quorumlog.cli.options import Json, Timeout
from quorumlog.cli.output import CommandGroup, print_json, print_table, say, spoken_duration
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.group_commands import TopicRow

TIMEOUT_S = 10.0
Retention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        help="Show messages for so long, as in 7d or 12h; 0: as long as the log has them.",
        metavar="TIME",
        show_default=False,
    ),
]
PERMISSION_HELP = "r: may be read, w: takes messages, rw: both."

topic_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@topic_app.callback()
def topic() -> None:
    """Topics: made, changed and ended while they run.

    Example: quorumlog broker topic create orders --queues 8
    """


def _perm(text: str) -> int:
    from quorumlog.broker.group_commands import PERMISSIONS

    if text not in PERMISSIONS:
        raise ConfigError(f"--perm is one of {', '.join(PERMISSIONS)}, not {text!r}")
    return PERMISSIONS[text]


def _retention_ms(text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text == "0" else duration_ms_of(text, "--retention")


@topic_app.command()
def create(
    topic: TopicName,
    queues: Annotated[
        int, typer.Option("--queues", help="Number of queues.", min=1, max=10_000, metavar="N")
    ] = 4,
    perm: Annotated[str, typer.Option("--perm", help=PERMISSION_HELP, metavar="r|w|rw")] = "rw",
    retention: Retention = None,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Make a topic. If it stands as it is asked for, that is fine.

    Example: quorumlog broker topic create orders --queues 8 --retention 7d
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        admin.create_topic(topic, queues, perm=_perm(perm), retention_ms=_retention_ms(retention) or 0)
        _print(admin.topics(topic), json)


@topic_app.command()
def update(
    topic: TopicName,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            help="Number of queues, not fewer than there are.",
            min=1,
            max=10_000,
            metavar="N",
        ),
    ] = None,
    perm: Annotated[
        str | None,
        typer.Option("--perm", help=PERMISSION_HELP, metavar="r|w|rw", show_default=False),
    ] = None,
    retention: Retention = None,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Change what is given, and leave the rest.

    Example: quorumlog broker topic update orders --perm r
    """
    from quorumlog.broker import BrokerAdmin

    if queues is None and perm is None and retention is None:
        raise ConfigError("nothing to change: give --queues, --perm or --retention")
    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        admin.update_topic(
            topic,
            queues=queues,
            perm=None if perm is None else _perm(perm),
            retention_ms=_retention_ms(retention),
        )
        _print(admin.topics(topic), json)


@topic_app.command("list")
def list_(
    system: Annotated[
        bool, typer.Option("--system", help="The broker's own, too: retries, delays, dead letters.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """All topics.

    Example: quorumlog broker topic list --json
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        _print(admin.topics(system=system), json)


@topic_app.command()
def show(
    topic: TopicName, server: Server = DEFAULT_SERVER, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """One topic, and what lies in its queues.

    Example: quorumlog broker topic show orders
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        (row,) = admin.topics(topic)
        queues = admin.queues(topic)
    if json:
        rows = [each._asdict() for each in queues]
        print_json(_fields(row) | {"queue_rows": rows})
        return
    _print([row], json)
    say("")
    print_table(
        {"queue": True, "messages": True, "from": True, "to": True},
        [(q.queue_id, q.max_offset - q.min_offset, q.min_offset, q.max_offset) for q in queues],
    )


@topic_app.command()
def delete(
    topic: TopicName, server: Server = DEFAULT_SERVER, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """End a topic: its messages are not shown any more, not even by a topic of the same name.

    Example: quorumlog broker topic delete audit
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        admin.topics(topic)  # says so if there is none
        admin.delete_topic(topic)
    if json:
        print_json({"topic": topic, "deleted": True})
    else:
        say(f"topic {topic} is deleted")


def _fields(row: TopicRow) -> dict[str, Any]:
    from quorumlog.broker.group_commands import PERMISSION_NAMES

    return {
        "topic": row.topic,
        "queues": row.queues,
        "perm": PERMISSION_NAMES[row.perm & 6],
        "retention_ms": row.retention_ms,
    }


def _print(rows: list[TopicRow], json: bool) -> None:
    fields = [_fields(row) for row in rows]
    if json:
        for each in fields:
            print_json(each)
        return
    print_table(
        {"topic": False, "queues": True, "perm": False, "shown for": True},
        [
            (each["topic"], each["queues"], each["perm"], spoken_duration(ms) if ms else None)
            for each in fields
            for ms in [each["retention_ms"]]
        ],
    )
