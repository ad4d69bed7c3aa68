"""One run of Kafka's clients in virtual time: faults for a while, then none, then all must add up."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quorumlog.kafka.fetching import records_of
from quorumlog.kafka.machine import CreateKafkaTopic, KafkaMachine, entry_of
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.member import SimMember
from quorumlog.testing.promises import Violation
from sim.applications import FAULTS, make_cluster
from sim.clients import STALLS
from sim.kafka.sim_clients import (
    GROUP,
    PARTITIONS,
    TOPIC,
    TOPIC_ID,
    KafkaHistory,
    SimKafkaConsumer,
    SimKafkaProducer,
    records_in,
)
from sim.kafka.sim_members import KafkaWatched, SimKafka
from sim.log.profile import application_profile
from sim.ran import Ran

FAULTS_MS = 8_000.0
PRODUCERS, CONSUMERS = 2, 3
DRAIN_MS = 30_000.0
"""How long consumers may take to read what is left, once nothing fails."""


def run_kafka(seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS) -> Ran:
    """Same seed and arguments, same run. Raises nothing."""
    result = Ran(seed)
    with result.noting_failure():
        _run(result, faults_ms, faults)
    return result


def _run(result: Ran, faults_ms: float, faults: Sequence[str]) -> None:
    random = Random(result.seed)
    profile = application_profile(random, result.seed, faults, 1_500.0)
    kafka, history = SimKafka(), KafkaHistory()
    cluster = make_cluster(random, profile, kafka)
    cluster.checkers.append(KafkaWatched(cluster, kafka))
    result.counts = cluster.trace.counts
    kafka.stalls = STALLS
    producers = [SimKafkaProducer(kafka, history, f"p{n}", n) for n in range(PRODUCERS)]
    consumers = [SimKafkaConsumer(kafka, history, f"c{n}") for n in range(CONSUMERS)]
    for member in cluster.members:
        member.start()
    cluster.faults.begin()  # at once: it sets the clocks of members that have not yet told theirs
    _create_topic(cluster, kafka)
    for client in (*producers, *consumers):
        client.work()
    cluster.run_for(faults_ms)
    for client in (*producers, *consumers):
        client.is_ending = True
    make_whole(cluster, lambda: all(producer.is_settled for producer in producers))
    until_ms = cluster.now_ms + DRAIN_MS
    while not _all_is_read(cluster, kafka):
        if cluster.now_ms > until_ms:
            raise Violation(f"consumers have not read all after {DRAIN_MS:g} ms: {history.committed}")
        cluster.run_for(250.0)
    result.trace_hash = cluster.trace.hash
    check(cluster, kafka, history)
    for what, count in history.counts.items():
        result.counts[f"kafka: {what}"] += count


def _create_topic(cluster: SimCluster, kafka: SimKafka) -> None:
    command = CreateKafkaTopic(TOPIC_ID, TOPIC, PARTITIONS)
    until_ms = cluster.now_ms + DRAIN_MS
    while not all(TOPIC in _machine(kafka, member).topics for member in cluster.members):
        assert cluster.now_ms < until_ms, "the topic is not made"
        for service in kafka.services.values():
            if service.leads and TOPIC not in service.machine.topics:
                service.append(entry_of(command), 1_000, None, lambda outcome: None)
        cluster.run_for(250.0)


def _machine(kafka: SimKafka, member: SimMember) -> KafkaMachine:
    return kafka.machines[member.member_id].newest or KafkaMachine(lambda grown: None)


def _all_is_read(cluster: SimCluster, kafka: SimKafka) -> bool:
    leading = [each for each in kafka.services.values() if each.leads]
    if len(leading) != 1:
        return False
    machine = leading[0].machine
    offsets = machine.groups.get(GROUP, {})
    return all(
        (number_of := offsets.get((TOPIC_ID, number))) is not None
        and number_of.offset == partition.end_offset
        for number, partition in enumerate(machine.topics[TOPIC].partitions)
        if partition.end_offset
    )


def check(cluster: SimCluster, kafka: SimKafka, history: KafkaHistory) -> None:
    """Of a cluster that is whole, whose consumers have read everything. Raises Violation."""
    (leader,) = cluster.leading()
    read_bytes = leader.node.store.read_bytes
    found: dict[int, list[bytes]] = {}
    for number, partition in enumerate(_machine(kafka, leader).topics[TOPIC].partitions):
        places = partition.find(0, 1 << 30)
        batches = records_of(read_bytes, places) if places else []
        records = records_in(b"".join(batches or []))
        if [offset for offset, _ in records] != list(range(partition.end_offset)):
            raise Violation(f"partition {number} has other offsets than 0 to {partition.end_offset - 1}")
        found[number] = [value for _, value in records]
    for (name, number), values in history.sent.items():
        kept = [value for value in found[number] if value.startswith(f"{name}:".encode())]
        if kept != values:
            raise Violation(f"{name} has sent {values} to {number}, and there is {kept}")
    for value, (number, offset) in history.acknowledged.items():
        if found[number][offset] != value:
            raise Violation(f"{value!r} was acknowledged at {offset} of {number}")
    read = {(number, at): value for number, values in found.items() for at, value in enumerate(values)}
    if history.read != read:
        raise Violation(f"consumers have read {history.read}, and there is {read}")
    for number, offset in history.committed.items():
        if offset > len(found[number]):
            raise Violation(f"{offset} is committed in {number}, which ends at {len(found[number])}")
