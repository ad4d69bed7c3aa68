"""Options that the commands of a broker share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.options import named_path
from quorumlog.errors import ConfigError

DEFAULT_SERVER = "127.0.0.1:10911"

Server = Annotated[
    str,
    typer.Option(
        "--server",
        help="Address of the broker; of several that replicate each other, HOST:PORT,..., the master is"
        " found.",
        envvar="QUORUMLOG_BROKER",
        metavar="HOST:PORT",
    ),
]
MOST_QUEUE_ID = (1 << 31) - 1
"""What a record has room for."""


def _topic(name: str) -> str:
    """Checked before anything is done; an empty name would stand for all topics."""
    from quorumlog.broker.message import check_topic

    check_topic(name)
    return name


def _group(name: str) -> str:
    from quorumlog.broker.group_commands import check_group_name

    check_group_name(name)
    return name


Topic = Annotated[
    str, typer.Option("--topic", help="Name of the topic.", metavar="NAME", callback=_topic)
]
TopicName = Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC", callback=_topic)]
GroupName = Annotated[
    str, typer.Argument(help="Name of the consumer group.", metavar="GROUP", callback=_group)
]
ConsumerGroup = Annotated[
    str,
    typer.Option(
        "--group",
        help="Consumer group; its first member makes it.",
        metavar="NAME",
        callback=_group,
    ),
]
Queue = Annotated[
    int, typer.Option("--queue", help="Number of the queue.", min=0, max=MOST_QUEUE_ID, metavar="N")
]
StoreDirectory = Annotated[
    Path,
    typer.Argument(
        help="Directory of a stopped store, ours or a Java broker's (storePathRootDir).",
        metavar="DIR",
        show_default=False,
        parser=named_path,
    ),
]


class Flush(Enum):
    SYNC = "sync"
    ASYNC = "async"


class RoleChoice(Enum):
    SYNC_MASTER = "sync-master"
    ASYNC_MASTER = "async-master"
    SLAVE = "slave"
    DLEDGER = "dledger"


class Dialect(Enum):
    QUORUMLOG = "quorumlog"
    ROCKETMQ = "rocketmq"


def topics_of(text: str) -> dict[str, int]:
    """`orders:8,audit` as numbers of queues by topic, 4 where none is given; empty: no topics. Raises
    ConfigError."""
    from quorumlog.broker.group_commands import check_new_topic_name
    from quorumlog.errors import BadRequest

    topics: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = part.partition(":")
        try:
            check_new_topic_name(name)
        except BadRequest as error:
            raise ConfigError(f"--topics: {error}") from None
        if count and not (count.isascii() and count.isdigit() and 1 <= int(count) <= 10_000):
            raise ConfigError(f"--topics: {part!r} must be like orders:8, with 1 to 10000 queues")
        topics[name] = int(count) if count else 4
    if text and not topics:
        raise ConfigError("--topics names none; write --topics orders:8,audit")
    return topics


def topics_of_store(text: str, directory: Path) -> dict[str, int]:
    """The same, for a store that keeps the topics it holds messages of. Raises ConfigError where it
    would have none at all."""
    topics = topics_of(text)
    if not topics and not (directory / "commitlog").exists():
        raise ConfigError("--topics is missing, and the store is new; write --topics orders:8,audit")
    return topics


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms_of(text: str, option: str) -> int:
    """Of `90s`, `12h`, `7d`. Raises ConfigError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{option} {text!r} is no duration: write 90s, 15m, 12h or 7d")
    return int(number) * _UNITS_MS[unit]
