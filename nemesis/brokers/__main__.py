"""Masters are killed, stopped and cut off one way while producers send, half of them in sessions, and a
group whose members change reads, and snapshots are taken all the time; then everything must add up.

    python -m nemesis.brokers [--rounds 12] [--producers 8] [--consumers 3]

Every acknowledged message lies once in its queue, at the offset that its producer was told, and messages
of one producer lie in the order in which it sent them. The group has seen each of them, those of a
queue in their order, and no committed offset went back. Printed for each fault: how long it took until
the next message was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from harness.broker_cluster import BrokerCluster
from harness.proxy import LinkConditions
from nemesis.brokers.consumers import Group, Seen
from quorumlog.broker import AsyncBrokerClient, AsyncProducer, Message, connect, connect_async
from quorumlog.errors import LedgerError

TOPIC, QUEUES = "t", 4
FAULTS = ("kill", "stop", "cut out", "cut in")
SETTLE_S = 1.0
"""Between two faults, so that the member that was away has come back."""
SEEN_WITHIN_S = 60.0
SNAPSHOT_ENTRIES = 500
"""So few that a member which comes back begins with one."""


@dataclass(slots=True)
class Sent:
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(queue, offset) -> body."""
    unknown: int = 0
    last_s: float = 0.0
    """When a message was acknowledged last."""
    twice: list[str] = field(default_factory=list)


async def produce(
    client: AsyncBrokerClient | AsyncProducer, number: int, sent: Sent, stop: asyncio.Event
) -> None:
    """Each waits for its answer; what may be stored is not sent again."""
    count = 0
    while not stop.is_set():
        body = b"%d:%d" % (number, count)
        count += 1
        try:
            receipt = await client.send(
                Message(TOPIC, body, keys=[body.decode()]), queue_id=number % QUEUES
            )
        except LedgerError:
            sent.unknown += 1
            continue
        place = receipt.queue_id, receipt.queue_offset
        if place in sent.acknowledged:
            sent.twice.append(f"{place}: {sent.acknowledged[place]!r} and {body!r}")
        sent.acknowledged[place] = body
        sent.last_s = time.monotonic()


async def master_of(cluster: BrokerCluster) -> str:
    async with connect_async(cluster.servers) as client:
        address = (await client.status()).master
    (name,) = [name for name, each in cluster.addresses.items() if each == address]
    return name


async def disturb(cluster: BrokerCluster, fault: str, sent: Sent) -> float:
    """Seconds from the fault to the next acknowledgement."""
    name = await master_of(cluster)
    begin = time.monotonic()
    if fault == "kill":
        await asyncio.to_thread(cluster.kill, name)
    elif fault == "stop":
        cluster.pause(name)
    else:
        others = [each for each in cluster.addresses if each != name]
        ways = [(name, each) if fault == "cut out" else (each, name) for each in others]
        number = cluster.network.impose(ways, LinkConditions(is_cut=True))
    while sent.last_s <= begin + 0.005:  # one that was on its way does not count
        await asyncio.sleep(0.002)
        if time.monotonic() > begin + 60:
            raise TimeoutError(f"nothing is acknowledged 60 s after {fault} of {name}")
    took_s = sent.last_s - begin
    if fault == "kill":
        await asyncio.to_thread(cluster.start, name)
    elif fault == "stop":
        cluster.resume(name)
    else:
        cluster.network.lift(number)
    await asyncio.sleep(SETTLE_S)
    return took_s


def violations(cluster: BrokerCluster, sent: Sent) -> list[str]:
    found = [f"two messages were acknowledged at one place: {each}" for each in sent.twice]
    held: dict[tuple[int, int], bytes] = {}
    with connect(cluster.servers) as client:
        for queue_id in range(QUEUES):
            offset = 0
            while pulled := client.pull(TOPIC, queue_id, offset).messages:
                for message in pulled:
                    held[queue_id, message.queue_offset] = message.body
                offset = pulled[-1].queue_offset + 1
    for place, body in sent.acknowledged.items():
        if held.get(place) != body:
            found.append(f"{body!r} was acknowledged at {place}, where {held.get(place)!r} lies")
    bodies = list(held.values())
    if len(set(bodies)) < len(bodies):
        found.append(f"{len(bodies) - len(set(bodies))} messages lie there twice")
    last: dict[bytes, int] = {}
    for _, body in sorted(held.items()):
        producer, _, count = body.partition(b":")
        if int(count) <= last.get(producer, -1):
            found.append(f"{body!r} lies behind {last[producer]} of its producer")
        last[producer] = int(count)
    return found


async def run(
    cluster: BrokerCluster, rounds: int, producers: int, consumers: int
) -> tuple[Sent, Seen, list[tuple[str, float]]]:
    sent, stop = Sent(), asyncio.Event()
    times: list[tuple[str, float]] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect_async(cluster.servers))
        group = await stack.enter_async_context(Group(cluster.servers, TOPIC, consumers))
        tasks = []
        for number in range(producers):
            in_session = AsyncProducer(cluster.servers, idempotent=True)
            await stack.enter_async_context(in_session)
            sends = in_session if number % 2 else client
            tasks.append(asyncio.create_task(produce(sends, number, sent, stop)))
        try:
            while not sent.acknowledged:
                await asyncio.sleep(0.01)
            for number in range(rounds):
                fault = FAULTS[number % len(FAULTS)]
                times.append((fault, await disturb(cluster, fault, sent)))
                print(f"{fault}: {times[-1][1] * 1000:.0f} ms", flush=True)
                group.change()
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)
        await group.await_all(set(sent.acknowledged.values()), SEEN_WITHIN_S)
    return sent, group.seen, times


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nemesis.brokers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="faults (%(default)s)")
    parser.add_argument("--producers", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--consumers", type=int, default=3, help="members of a group (%(default)s)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="nemesis-brokers-") as folder,
        BrokerCluster(
            Path(folder),
            topics=f"{TOPIC}:{QUEUES}",
            log_options={"snapshot_entries": SNAPSHOT_ENTRIES},
        ) as cluster,
    ):
        sent, seen, times = asyncio.run(
            run(cluster, options.rounds, options.producers, options.consumers)
        )
        found = violations(cluster, sent) + seen.found
        snapshots = len([path for path in Path(folder).glob("n*/snapshots/*") if path.is_file()])
    for fault in FAULTS:
        of_fault = [seconds for each, seconds in times if each == fault]
        if of_fault:
            median, worst = statistics.median(of_fault), max(of_fault)
            print(f"{fault}: median {median * 1000:.0f} ms, at most {worst * 1000:.0f} ms")
    print(f"{len(sent.acknowledged)} messages acknowledged, {sent.unknown} outcomes unknown")
    print(f"{snapshots} snapshots of machines lie there")
    print(f"{len(seen.bodies)} seen by the group, in {len(seen.generations)} generations that were met")
    for each in found[:20]:
        print(f"VIOLATION: {each}")
    print("all of them are there, once, in order" if not found else f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
