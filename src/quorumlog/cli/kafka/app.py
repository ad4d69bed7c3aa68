"""quorumlog kafka: topics and consumer groups of Kafka's clients."""

from __future__ import annotations

from typing import Annotated

from quorumlog.cli.options import App, KafkaPorts, argument, option
from quorumlog.cli.output import tell, tell_rows

Topic = Annotated[str, argument("Name of the topic.", "TOPIC")]
Group = Annotated[str, argument("Name of the consumer group.", "GROUP")]
kafka_app = App(
    "Topics and consumer groups of Kafka's clients, on members that run with --kafka.",
    "quorumlog kafka topic list --servers 127.0.0.1:9092",
)
topic_app = App(
    "Create, list, show, grow and delete topics.",
    "quorumlog kafka topic create orders --partitions 8 --servers 127.0.0.1:9092",
)
group_app = App(
    "List and show consumer groups.",
    "quorumlog kafka group show readers --servers 127.0.0.1:9092",
)


@topic_app.command()
def create(
    at: KafkaPorts,
    topic: Topic,
    partitions: Annotated[int, option("Number of partitions.", min=1, max=10_000)] = 1,
) -> None:
    """Create a topic.

    Example: quorumlog kafka topic create orders --partitions 8
    """
    with at.connected() as admin:
        admin.create_topic(topic, partitions)
    _tell_partitions(topic, partitions)


def _tell_partitions(topic: str, partitions: int) -> None:
    count = "1 partition" if partitions == 1 else f"{partitions} partitions"
    tell({"topic": topic, "partitions": partitions}, f"topic {topic} has {count}")


@topic_app.command("list")
def list_topics(at: KafkaPorts) -> None:
    """List topics.

    Example: quorumlog kafka topic list
    """
    with at.connected() as admin:
        found = admin.topics()
    rows = [{"topic": each.name, "id": each.topic_id, "partitions": each.partitions} for each in found]
    cells = [(each.name, each.partitions, each.topic_id) for each in found]
    tell_rows(rows, "topic, partitions #, id", cells, "there are no topics")


@topic_app.command()
def show(at: KafkaPorts, topic: Topic) -> None:
    """Show the offsets of a topic's partitions.

    Example: quorumlog kafka topic show orders
    """
    with at.connected() as admin:
        found = admin.partitions(topic)
    tell_rows([each._asdict() for each in found], "partition #, start #, end #", found)


@topic_app.command("partitions")
def grow(
    at: KafkaPorts,
    topic: Topic,
    partitions: Annotated[int, argument("Number of partitions, in all.", min=1, max=10_000)],
) -> None:
    """Give a topic more partitions.

    Example: quorumlog kafka topic partitions orders 16
    """
    with at.connected() as admin:
        admin.grow_topic(topic, partitions)
    _tell_partitions(topic, partitions)


@topic_app.command()
def delete(at: KafkaPorts, topic: Topic) -> None:
    """Delete a topic, its records and the offsets committed for it.

    Example: quorumlog kafka topic delete orders
    """
    with at.connected() as admin:
        admin.delete_topic(topic)
    tell({"topic": topic}, f"topic {topic} is deleted")


@group_app.command("list")
def list_groups(at: KafkaPorts) -> None:
    """List consumer groups.

    Example: quorumlog kafka group list
    """
    with at.connected() as admin:
        found = admin.groups()
    rows = [{"group": each.name, "state": each.state} for each in found]
    tell_rows(rows, "group, state", found, "there are no consumer groups")


@group_app.command("show")
def show_group(at: KafkaPorts, group: Group) -> None:
    """Show committed offsets and their lag.

    Example: quorumlog kafka group show readers
    """
    with at.connected() as admin:
        found = admin.offsets_of(group)
    rows = [{**each._asdict(), "lag": each.end_offset - each.committed_offset} for each in found]
    cells = [(*each[:4], each.end_offset - each.committed_offset, each.member) for each in found]
    headings = "topic, partition #, committed #, end #, lag #, member"
    tell_rows(rows, headings, cells, f"group {group} has no committed offsets")


kafka_app.add_typer(topic_app, name="topic")
kafka_app.add_typer(group_app, name="group")
