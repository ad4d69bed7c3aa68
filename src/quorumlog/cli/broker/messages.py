"""Topics and groups as options, and messages as they are printed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from quorumlog.cli.options import argument, option
from quorumlog.cli.output import print_table

if TYPE_CHECKING:
    from quorumlog.broker.message import StoredMessage


MOST_QUEUE_ID = (1 << 31) - 1
"""The largest id in a record."""


def _topic(name: str) -> str:
    """Checked before anything is done; an empty name would stand for all topics."""
    from quorumlog.broker.message import check_topic

    check_topic(name)
    return name


def checked_group(name: str) -> str:
    from quorumlog.broker.group_commands import check_group_name

    check_group_name(name)
    return name


Topic = Annotated[str, option("Name of the topic.", "NAME", callback=_topic)]
TopicName = Annotated[str, argument("Name of the topic.", "TOPIC", callback=_topic)]
GroupName = Annotated[str, argument("Name of the consumer group.", "GROUP", callback=checked_group)]
StoreDirectory = Annotated[
    Path, argument("Directory of a stopped store, ours or a Java broker's (storePathRootDir).", "DIR")
]


_SHOWN_BYTES = 80


def message_row(message: StoredMessage) -> dict[str, Any]:
    """For --json: the body as text where it is UTF-8, else `body_hex`."""
    row = message._asdict()
    body = row.pop("body")
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_hex"] = body.hex()
    row["keys"] = list(message.keys)
    return row


def spoken_time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # no date: what stands there
        return f"{time_ms}ms"


def message_line(message: StoredMessage) -> str:
    moment = spoken_time(message.store_time_ms)
    text = message.body[:_SHOWN_BYTES].decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "·" for c in text)
    more = "…" if len(message.body) > _SHOWN_BYTES else ""
    marks = "".join(
        f" {name}={value}"
        for name, value in (("tags", message.tags), ("keys", " ".join(message.keys)))
        if value
    )
    return (
        f"{message.topic} {message.queue_id} {message.queue_offset} @{message.physical_offset} {moment}"
        f"{marks}  {shown}{more}"
    )


def print_topics(rows: Iterable[tuple[str, int, int, int]]) -> None:
    """`rows` as of `print_queues`, summed by topic."""
    topics: dict[str, tuple[int, int]] = {}
    for topic, _, first, stop in rows:
        queues, messages = topics.get(topic, (0, 0))
        topics[topic] = queues + 1, messages + stop - first
    if topics:
        table = [(topic, *sums) for topic, sums in topics.items()]
        print_table("topic, queues #, messages #", table)


def print_queues(rows: Iterable[tuple[str, int, int, int]]) -> None:
    """`rows`: (topic, queue id, first offset, stop offset). Nothing where there is no queue."""
    table = [(topic, queue, stop - first, first, stop) for topic, queue, first, stop in rows]
    if table:
        print_table("topic, queue #, messages #, from #, to #", table)
