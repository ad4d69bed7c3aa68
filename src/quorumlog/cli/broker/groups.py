"""quorumlog broker topic, group, dlq, consume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from quorumlog.cli.broker.messages import (
    GroupName,
    Topic,
    TopicName,
    checked_group,
    message_line,
    message_row,
    spoken_time,
)
from quorumlog.cli.options import App, BrokerServers, argument, duration_ms_of, option, time_ms_of
from quorumlog.cli.output import is_json, print_table, say, spoken_duration, tell, tell_rows
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.group_commands import TopicRow


Retention = Annotated[
    str | None,
    option("Show messages for this long, as in 7d or 12h; 0: as long as the log has them.", "TIME"),
]
PERMISSION_HELP = "r: may be read, w: takes messages, rw: both."

topic_app = App(
    "Create, change and delete topics at run time.",
    "quorumlog broker topic create orders --queues 8",
)


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
    at: BrokerServers,
    topic: TopicName,
    queues: Annotated[int, option("Number of queues.", min=1, max=10_000)] = 4,
    perm: Annotated[str, option(PERMISSION_HELP, "r|w|rw")] = "rw",
    retention: Retention = None,
) -> None:
    """Create a topic; succeeds if it exists with the same settings.

    Example: quorumlog broker topic create orders --queues 8 --retention 7d
    """
    with at.admin() as admin:
        admin.create_topic(topic, queues, perm=_perm(perm), retention_ms=_retention_ms(retention) or 0)
        _print(admin.topics(topic))


@topic_app.command()
def update(
    at: BrokerServers,
    topic: TopicName,
    queues: Annotated[
        int | None, option("Number of queues; cannot be reduced.", min=1, max=10_000)
    ] = None,
    perm: Annotated[str | None, option(PERMISSION_HELP, "r|w|rw")] = None,
    retention: Retention = None,
) -> None:
    """Change the given settings of a topic.

    Example: quorumlog broker topic update orders --perm r
    """
    if queues is None and perm is None and retention is None:
        raise ConfigError("nothing to change: give --queues, --perm or --retention")
    with at.admin() as admin:
        admin.update_topic(
            topic,
            queues=queues,
            perm=None if perm is None else _perm(perm),
            retention_ms=_retention_ms(retention),
        )
        _print(admin.topics(topic))


@topic_app.command("list")
def list_topics(
    at: BrokerServers,
    system: Annotated[
        bool, option("Include the broker's own topics: retries, delays, dead letters.")
    ] = False,
) -> None:
    """All topics.

    Example: quorumlog broker topic list --json
    """
    with at.admin() as admin:
        _print(admin.topics(system=system))


@topic_app.command("show")
def show_topic(topic: TopicName, at: BrokerServers) -> None:
    """One topic and its queues.

    Example: quorumlog broker topic show orders
    """
    with at.admin() as admin:
        (row,) = admin.topics(topic)
        queues = admin.queues(topic)

    def show() -> None:
        _print([row])
        say("")
        print_table(
            "queue #, messages #, from #, to #",
            [(q.queue_id, q.max_offset - q.min_offset, q.min_offset, q.max_offset) for q in queues],
        )

    tell(_fields(row) | {"queue_rows": [each._asdict() for each in queues]}, show)


@topic_app.command("delete")
def delete_topic(topic: TopicName, at: BrokerServers) -> None:
    """Delete a topic: its messages are no longer shown, not even if the topic is created again.

    Example: quorumlog broker topic delete audit
    """
    with at.admin() as admin:
        admin.topics(topic)  # says so if there is none
        admin.delete_topic(topic)
    tell({"topic": topic, "deleted": True}, f"topic {topic} is deleted")


def _fields(row: TopicRow) -> dict[str, Any]:
    from quorumlog.broker.group_commands import PERMISSION_NAMES

    return {
        "topic": row.topic,
        "queues": row.queues,
        "perm": PERMISSION_NAMES[row.perm & 6],
        "retention_ms": row.retention_ms,
    }


def _print(rows: list[TopicRow]) -> None:
    fields = [_fields(row) for row in rows]
    tell_rows(
        fields,
        "topic, queues #, perm, shown for #",
        [
            (each["topic"], each["queues"], each["perm"], spoken_duration(ms) if ms else None)
            for each in fields
            for ms in [each["retention_ms"]]
        ],
    )


group_app = App(
    "Consumer groups: list, show lag, reset offsets, delete.",
    "quorumlog broker group show billing",
)


@group_app.command("list")
def list_groups(at: BrokerServers) -> None:
    """All consumer groups.

    Example: quorumlog broker group list
    """
    with at.admin() as admin:
        rows = admin.groups()
    topics = [sorted({topic for each in row.members for topic, _ in each.topics}) for row in rows]
    tell_rows(
        [
            {
                "group": row.group,
                "generation": row.generation,
                "members": [each.member for each in row.members],
                "topics": read,
            }
            for row, read in zip(rows, topics, strict=True)
        ],
        "group, members #, generation #, topics",
        [
            (row.group, len(row.members), row.generation, ", ".join(read) or None)
            for row, read in zip(rows, topics, strict=True)
        ],
    )


@group_app.command("show")
def show_group(group: GroupName, at: BrokerServers) -> None:
    """Show the lag of a group, in messages and seconds, for each queue.

    Example: quorumlog broker group show billing --json
    """
    with at.admin() as admin:
        lags = admin.lag(group)
    behind = sum(lag.messages for lag in lags)
    oldest = max((lag.seconds for lag in lags), default=0.0)
    if not is_json():
        say(f"{group}: {behind} messages behind, the oldest since {oldest:.1f} s")
    tell_rows(
        (lag._asdict() | {"seconds": round(lag.seconds, 3)} for lag in lags),
        "topic, queue #, committed #, end #, behind #, seconds #, read by",
        [
            (
                lag.topic,
                lag.queue_id,
                None if lag.committed_offset < 0 else lag.committed_offset,
                lag.end_offset,
                lag.messages,
                f"{lag.seconds:.1f}",
                lag.member or None,
            )
            for lag in lags
        ],
    )


@group_app.command()
def reset(
    at: BrokerServers,
    group: GroupName,
    to: Annotated[str, option("earliest, latest, or a time: 2h, 2026-11-23T10:00Z.", "PLACE")],
    topic: Annotated[
        list[str] | None,
        option("This topic only; may be repeated. (default: all topics of the group)", "NAME"),
    ] = None,
) -> None:
    """Reset a group's offsets. Commits of messages in progress are ignored.

    Example: quorumlog broker group reset billing --to 2h --topic orders
    """
    words = ("earliest", "latest")
    place = to if to in words else float(time_ms_of(to, "--to", words))
    with at.admin() as admin:
        offsets = admin.reset(group, place, topic or ())
    for (name, queue), offset in offsets.items():
        tell(
            {
                "group": group,
                "topic": name,
                "queue_id": queue,
                "queue": queue,  # as the releases before called it
                "offset": offset,
            },
            f"{group} continues at {offset} of {name} queue {queue}",
        )


@group_app.command("delete")
def delete_group(group: GroupName, at: BrokerServers) -> None:
    """Forget a group without members: its offsets, its retries and its dead letters.

    Example: quorumlog broker group delete billing
    """
    with at.admin() as admin:
        admin.delete_group(group)
    tell({"group": group, "deleted": True}, f"group {group} is deleted")


Name = Annotated[str, argument("Name of the consumer group.", "GROUP")]

dlq_app = App(
    "Dead letters: messages that exceeded their retries, with the cause.",
    "quorumlog broker dlq list billing",
)


@dlq_app.command("list")
def list_letters(
    at: BrokerServers,
    group: Name,
    begin: Annotated[int, option("First offset to show.", "OFFSET", name="--from", min=0)] = 0,
    most: Annotated[int, option("Maximum number to show.", min=1)] = 100,
) -> None:
    """Dead letters of a group, each with its cause.

    Example: quorumlog broker dlq list billing --most 10
    """
    with at.admin() as admin:
        letters = admin.dead_letters(group, begin, most_messages=most)
    tell_rows(
        map(message_row, letters),
        "offset #, topic, keys, attempts #, stored, cause",
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
    at: BrokerServers,
    group: Name,
    offset: Annotated[
        list[int] | None, option("Offset of a message to send; may be repeated.", "OFFSET", min=0)
    ] = None,
    all_: Annotated[bool, option("All of them.", name="--all")] = False,
    begin: Annotated[
        int, option("With --all: first offset to send.", "OFFSET", name="--from", min=0)
    ] = 0,
) -> None:
    """Send dead letters to their group again, as if for the first time. They stay in the list: continue
    with --from after the last one that was sent.

    Example: quorumlog broker dlq resend billing --offset 3 --offset 5
    """
    if bool(offset) == all_:
        raise ConfigError("choose the messages to send again: --offset N for each, or --all")
    sent = 0
    with at.admin() as admin:
        if offset:
            sent = admin.resend(group, offset)
        while all_ and (letters := admin.dead_letters(group, begin)):
            sent += admin.resend(group, [letter.queue_offset for letter in letters])
            begin = letters[-1].queue_offset + 1
    tell(
        {"group": group, "sent": sent, "next": begin if all_ else None},
        f"{sent} dead letters of {group} are sent again"
        + (f"; the next one is {begin}" if all_ else ""),
    )


def consume(
    at: BrokerServers,
    topic: Topic,
    group: Annotated[
        str, option("Consumer group; its first member creates it.", "NAME", callback=checked_group)
    ],
    tags: Annotated[str, option("Only messages with these: 'a || b'.", "TAGS")] = "*",
    begin: Annotated[
        str,
        option(
            "Where to begin if the group has no committed offset: earliest, latest, or a time.",
            "PLACE",
            name="--from",
        ),
    ] = "earliest",
    most: Annotated[int | None, option("End after N messages.", min=1)] = None,
    until_idle: Annotated[
        float | None, option("End after this many seconds without a message.", min=0.1)
    ] = None,
) -> None:
    """Print the messages of a topic and commit their offsets. Members of a group share its queues.

    Example: quorumlog broker consume --topic orders --group billing --from latest
    """
    import time

    from quorumlog.broker import Consumer

    place = begin if begin in ("earliest", "latest") else float(time_ms_of(begin, "--from"))
    left = most
    with Consumer(at.servers, group, {topic: tags}, begin=place, timeout_ms=at.timeout_ms) as consumer:
        last = time.monotonic()
        while left is None or left > 0:
            messages = consumer.poll(most_messages=min(left or 100, 100), wait_ms=500)
            for message in messages:
                tell(message_row(message), message_line(message))
            if messages:
                consumer.commit()
                last = time.monotonic()
                left = None if left is None else left - len(messages)
            elif until_idle is not None and time.monotonic() - last >= until_idle:
                return
