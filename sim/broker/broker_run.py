"""One run of brokers in virtual time: faults for a while, then none, then everything must add up."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quorumlog.broker.record_batch import QueueKey
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.promises import Violation
from sim.applications import FAULTS, FAULTS_MS, make_cluster
from sim.broker.sim_brokers import BrokersWatched, SimBrokers
from sim.broker.sim_clients import SimConsumer, SimProducer
from sim.clients import STALLS
from sim.log.profile import application_profile
from sim.ran import Ran

TOPICS = {"orders": 2, "audit": 1}
PRODUCERS = 3


def made_cluster(seed: int, brokers: SimBrokers, faults: Sequence[str] = FAULTS) -> SimCluster:
    """Of members with these brokers, none of which runs yet."""
    random = Random(seed)
    profile = application_profile(random, seed, faults, 1_000.0)
    cluster = make_cluster(random, profile, brokers)
    brokers.stalls = STALLS
    cluster.checkers.append(BrokersWatched(cluster, brokers))
    return cluster


def run_brokers(seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS) -> Ran:
    """Same seed and arguments, same run. Raises nothing."""
    result = Ran(seed)
    with result.noting_failure():
        brokers = SimBrokers(TOPICS)
        cluster = made_cluster(seed, brokers, faults)
        result.counts = cluster.trace.counts
        producers = [SimProducer(brokers, f"p{number}", TOPICS) for number in range(PRODUCERS)]
        consumer = SimConsumer(brokers, "c", TOPICS)
        for member in cluster.members:
            member.start()
        clients: list[SimProducer | SimConsumer] = [*producers, consumer]
        for client in clients:
            client.begin()
        cluster.faults.begin()
        cluster.run_for(faults_ms)
        for client in clients:
            client.works = False
        make_whole(cluster)
        before = result.counts["broker: acknowledged"]
        for client in clients:
            client.begin()
        cluster.run_for(1_000.0)
        for client in clients:
            client.works = False
        cluster.run_for(1_000.0)
        if result.counts["broker: acknowledged"] == before:
            raise Violation("nothing is acknowledged by a cluster that is whole")
        result.trace_hash = cluster.trace.hash
        check_promises(brokers, producers, consumer)
    return result


def check_promises(brokers: SimBrokers, producers: Sequence[SimProducer], consumer: SimConsumer) -> None:
    """Of a cluster that is whole and at rest: every acknowledged message lies on every member where its
    producer was told, what a consumer has seen lies there still, and nothing lies there twice, or though
    its send was refused. Raises Violation."""
    refused = {body for producer in producers for body in producer.refused}
    if consumer.contradiction:
        raise Violation(f"a consumer has seen two messages at one place: {consumer.contradiction}")
    for member_id, broker in brokers.brokers.items():
        held: dict[tuple[QueueKey, int], tuple[bytes, int]] = {}
        for topic, count in TOPICS.items():
            for queue_id in range(count):
                queue = QueueKey(topic, queue_id)
                for message in broker.reader.pull(queue, 0, 1 << 20, 1 << 30).records.messages():
                    key = queue, message.queue_offset
                    held[key] = message.body, message.physical_offset
        bodies = [body for body, _ in held.values()]
        if len(set(bodies)) < len(bodies):
            raise Violation(f"{member_id} has messages twice")
        if not refused.isdisjoint(bodies):
            raise Violation(f"{member_id} has messages whose send was refused")
        for each in (one for producer in producers for one in producer.acknowledged):
            if held.get((each.queue, each.offset)) != (each.body, each.position):
                found = held.get((each.queue, each.offset))
                raise Violation(f"{member_id} has {found} where {each} was acknowledged")
        for (queue, offset), body in consumer.seen.items():
            if held.get((queue, offset), (b"", 0))[0] != body:
                raise Violation(f"{member_id} has not {body!r}, which was seen at {queue} {offset}")
        some = next((one for producer in producers for one in producer.acknowledged), None)
        if some is not None:
            (found_by_key,) = broker.reader.query(some.queue.topic, some.body.decode()).messages()
            if found_by_key.physical_offset != some.position:
                raise Violation(f"{member_id} finds {some} by its key at another place")
