"""quorumlog broker send, pull, query, status."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from quorumlog.cli.broker.messages import (
    MOST_QUEUE_ID,
    Topic,
    message_line,
    message_row,
    print_queues,
    print_topics,
)
from quorumlog.cli.broker.replicas import print_brokers, replica_of, row_of, say_failover, say_replica
from quorumlog.cli.options import BrokerServers, argument, option, time_ms_of
from quorumlog.cli.output import is_json, print_json, say, spoken_size, tell
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.client.broker_calls import QueueInfo

_BATCH = 256


def send(
    at: BrokerServers,
    topic: Topic,
    body: Annotated[
        list[str] | None,
        argument("Bodies; without any, each line of standard input is one.", "[BODY]..."),
    ] = None,
    key: Annotated[
        list[str] | None, option("Key of the message, for queries; may be repeated.", "KEY")
    ] = None,
    tags: Annotated[str, option("Tags of the messages.", "TEXT")] = "",
    queue: Annotated[
        int | None, option("Queue. (default: round-robin)", min=0, max=MOST_QUEUE_ID)
    ] = None,
) -> None:
    """Send messages, and print where they are stored.

    Example: quorumlog broker send --topic orders --key 4711 "one crate of tea"
    """
    from quorumlog.broker import Message

    with at.connected() as broker:
        lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        bodies = iter([text.encode() for text in body]) if body else lines
        while batch := list(islice(bodies, _BATCH)):
            messages = [Message(topic, each, tags=tags, keys=tuple(key or ())) for each in batch]
            receipt = broker.send_batch(messages, queue_id=queue)
            row = {
                "topic": topic,
                "queue_id": receipt.queue_id,
                "queue_offset": receipt.queue_offset,
                "messages": receipt.message_count,
                "physical_offset": receipt.physical_offset,
                "message_id": receipt.message_id,
                "store_time_ms": receipt.store_time_ms,
                # As the releases before called them; the next one leaves them out.
                "queue": receipt.queue_id,
                "offset": receipt.queue_offset,
            }
            last = receipt.queue_offset + receipt.message_count - 1
            span = str(last) if receipt.message_count == 1 else f"{receipt.queue_offset} to {last}"
            tell(row, f"{topic} queue {receipt.queue_id} offset {span}  {receipt.message_id}")


def pull(
    at: BrokerServers,
    topic: Topic,
    queue: Annotated[int, option("Number of the queue.", min=0, max=MOST_QUEUE_ID)] = 0,
    offset: Annotated[int | None, option("First message. (default: the oldest)", min=0)] = None,
    since: Annotated[
        str, option("Only messages stored at this time or later: 2h, 2026-11-23T10:00Z.", "TIME")
    ] = "",
    most: Annotated[int, option("Maximum number of messages.", min=1)] = 1_000_000_000,
    follow: Annotated[bool, option("Wait for more, until Ctrl-C.")] = False,
) -> None:
    """Print the messages of a queue in order.

    Example: quorumlog broker pull --topic orders --queue 3 --offset 100 --most 10
    """
    if since and offset is not None:
        raise ConfigError("--since and --offset exclude each other")
    with at.connected() as broker:
        if since:
            position = broker.offset_at(topic, queue, time_ms_of(since))
        else:
            position = broker.min_offset(topic, queue) if offset is None else offset
        left = most
        while left:
            wait_ms = 5_000 if follow else 0
            pulled = broker.pull(topic, queue, position, most_messages=min(left, 1024), wait_ms=wait_ms)
            for message in pulled.messages:
                tell(message_row(message), message_line(message))
            if position == pulled.next_offset and not follow:
                return
            left -= pulled.next_offset - position
            position = pulled.next_offset


def query(
    at: BrokerServers,
    topic: Topic,
    key: Annotated[str, option("Key of the messages, or their UNIQ_KEY.", "KEY")] = "",
    message_id: Annotated[str, option("Id of one message instead.", "HEX", name="--id")] = "",
    since: Annotated[str, option("Only messages stored at this time or later.", "TIME")] = "",
    until: Annotated[str, option("Only messages stored at this time or before.", "TIME")] = "",
    most: Annotated[int, option("Maximum number.", min=1, max=1000)] = 64,
) -> None:
    """Find messages by key and time, the newest first.

    Example: quorumlog broker query --topic orders --key 4711 --since 2h
    """
    if bool(key) == bool(message_id):
        raise ConfigError("give --key or --id, one of both")
    with at.connected() as broker:
        if message_id:
            found = [broker.message(message_id)]
        else:
            begin = time_ms_of(since) if since else None
            end = time_ms_of(until, "--until") if until else None
            found = broker.query(topic, key, time=(begin, end), most_messages=most)
            if not found:
                broker.min_offset(topic, 0)  # says so if there is no such topic
    for message in found:
        tell(message_row(message), message_line(message))


def status(
    at: BrokerServers,
    topics: Annotated[bool, option("Show each queue of the topics instead of sums.")] = False,
) -> None:
    """Show the state of a broker: log, topics, problems. With several brokers, in --servers or known
    to a master, a row for each comes first.

    Example: quorumlog broker status --servers 127.0.0.1:10911 --topics
    """
    from quorumlog.broker.errors import NotReplicated
    from quorumlog.broker.group_commands import is_system_topic
    from quorumlog.errors import LedgerError, OutcomeUnknown

    with at.connected(only_looks=True) as broker:
        state = broker.status()
        queues: list[QueueInfo] = []
        replica, failover = None, None
        try:
            replica = replica_of(broker)
            with suppress(NotReplicated, OutcomeUnknown):
                failover = broker.failover()
            queues = broker.queues()
        except LedgerError:
            if state.users != "unknown":
                raise  # else only an administrator is told more
    if is_json():
        row = {**row_of(state), "replica": row_of(replica), "failover": row_of(failover)}
        print_json({**row, "queue_rows": [each._asdict() for each in queues]})
        return
    if len(at.addresses) > 1 or (replica is not None and replica.slaves):
        print_brokers(at)
    held = state.max_offset - state.min_offset
    say(f"{state.version}: {state.role}, {state.flush}, store in {state.directory}")
    say(
        f"commit log {state.min_offset} to {state.max_offset} ({spoken_size(held)}), on disk up to"
        f" {state.flushed_offset}, shown up to {state.confirm_offset},"
        f" {spoken_size(state.dispatch_behind_bytes)} not dispatched yet"
    )
    if state.users:
        say(f"users: {state.users}")
    if replica is not None:
        say_replica(replica)
    if failover is not None:
        say_failover(failover)
    # Of the broker's own topics, of which there are many, those that hold something.
    print_rows = print_queues if topics else print_topics
    print_rows(
        (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)
        for queue in queues
        if queue.min_offset < queue.max_offset or not is_system_topic(queue.topic)
    )
    if state.set_aside_files:
        say(f"{state.set_aside_files} files ({spoken_size(state.set_aside_bytes)}) are set aside")
    for problem in state.problems:
        say(f"problem: {problem}", "red")
