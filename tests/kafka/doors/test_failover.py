"""Producers and a group of three different consumers while consumers and members are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from harness.kafka.java_client import JavaClient
from harness.kafka.members import KafkaMembers
from harness.kafka.real_broker import VERSIONS
from harness.kafka.wire import KafkaWire
from harness.maven import Unavailable
from tests.kafka.doors.worker import PARTITIONS
from tests.waiting import eventually

pytestmark = [pytest.mark.doors, pytest.mark.timeout(900)]

TOPIC, GROUP = "under-load", "readers"
WORKER = (sys.executable, "-m", "tests.kafka.doors.worker")
CommandOf = Callable[..., list[str]]
"""Of a client: SERVERS TOPIC NAME of a producer, SERVERS TOPIC GROUP FILE of a consumer (worker.py)."""
PATIENCE_S = 240.0


class Consumer:
    """One that can be killed and started anew; its file stays."""

    def __init__(self, servers: str, kind: str, command_of: CommandOf, folder: Path) -> None:
        self.file = folder / f"{kind}.read"
        self.file.touch()
        self._log = folder / f"{kind}.log"
        self._command = command_of(servers, TOPIC, GROUP, str(self.file))
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self.check_running()
        self.destroy()

    def destroy(self) -> None:
        self._process.kill()
        self._process.wait()

    def check_running(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-2_000:]

    def read(self) -> list[tuple[int, int, str]]:
        """Without a line that was cut."""
        whole = self.file.read_text().rpartition("\n")[0].splitlines()
        return [(int(own), int(at), value) for own, at, value in map(str.split, whole)]


class Observer:
    """Asks for the group's offsets all the time, as any member that answers has them."""

    def __init__(self, members: KafkaMembers) -> None:
        self._addresses = list(members.kafka_addresses.values())
        self._ended = threading.Event()
        self.seen: dict[int, list[int]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            for address in self._addresses:
                try:
                    with KafkaWire(address) as wire:
                        while not self._ended.wait(0.05) and self._look(wire):
                            pass
                except (OSError, EOFError):
                    continue

    def _look(self, wire: KafkaWire) -> bool:
        topics = [{"name": TOPIC, "partition_indexes": list(range(PARTITIONS))}]
        found = wire.ask("offset_fetch", 7, group_id=GROUP, topics=topics, require_stable=False)
        if found.error_code:
            return False
        for each in found.topics[0].partitions:
            if each.committed_offset >= 0:
                self.seen[each.partition_index].append(each.committed_offset)
        return True

    def total(self) -> int:
        return sum(offsets[-1] for offsets in self.seen.values())


@contextmanager
def producing(
    servers: str, kind: str, command_of: CommandOf, folder: Path
) -> Iterator[Callable[[], int]]:
    """Until the function is called; it gives the number of records that were acknowledged."""
    with (folder / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(
            command_of(servers, TOPIC, kind),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )

    def ended() -> int:
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (folder / f"{kind}.log").read_text()[-2_000:]
        return int(said)

    try:
        yield ended
    finally:
        process.kill()
        process.wait()


def records_of(address: str) -> dict[int, list[str]]:
    """All that is in the topic, by partition, as the leader gives it."""
    from confluent_kafka import Consumer as Client
    from confluent_kafka import TopicPartition

    client = Client({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    found: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    ends = {
        partition: client.get_watermark_offsets(TopicPartition(TOPIC, partition), 60)[1]
        for partition in found
    }
    client.assign([TopicPartition(TOPIC, partition, 0) for partition in found])
    while any(len(found[partition]) < end for partition, end in ends.items()):
        for one in client.consume(1_000, 1.0):
            assert one.error() is None
            assert one.offset() == len(found[one.partition()]), "an offset is missing"
            found[one.partition()].append(one.value().decode())
    client.close()
    return found


def worker(kind: str) -> CommandOf:
    return lambda *arguments: [*WORKER, kind, *arguments]


def test_nothing_is_lost_or_repeated_and_offsets_never_go_back(tmp_path: Path) -> None:
    consumers = ("consume-librdkafka", "consume-aiokafka", "consume-kafka-python")
    producers = ("produce-librdkafka", "produce-aiokafka")
    check_under_kills(
        tmp_path, {each: worker(each) for each in producers}, {each: worker(each) for each in consumers}
    )


def test_java_loses_and_repeats_nothing_and_its_offsets_never_go_back(tmp_path: Path) -> None:
    try:
        clients = {version: JavaClient(made(tmp_path / version), version) for version in VERSIONS}
    except Unavailable as reason:
        pytest.skip(f"Kafka's Java clients are not to be had: {reason}")
    producers: dict[str, CommandOf] = {}
    consumers: dict[str, CommandOf] = {}
    for version, client in clients.items():
        producers[f"produce-java-{version}"] = partial(java_producer, client)
        consumers[f"consume-java-{version}"] = partial(java_consumer, client)
    kind = "consume-librdkafka"
    check_under_kills(tmp_path, producers, {**consumers, kind: worker(kind)})


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def java_producer(client: JavaClient, servers: str, topic: str, name: str) -> list[str]:
    return client.command(servers, "produce", topic, name, PARTITIONS)


def java_consumer(client: JavaClient, servers: str, *arguments: str) -> list[str]:
    return client.command(servers, "consume", *arguments)


def check_under_kills(
    tmp_path: Path, producers: Mapping[str, CommandOf], consumer_kinds: Mapping[str, CommandOf]
) -> None:
    """SIGKILL of each consumer, a follower, the leader twice, and a leader and a consumer at once."""
    with ExitStack() as stack:
        members = stack.enter_context(KafkaMembers(tmp_path / "members"))
        servers = members.kafka_servers
        members.kafka_leader()
        with KafkaWire(members.kafka_addresses[members.kafka_leader().member_id]) as wire:
            topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": -1}
            topic |= {"assignments": [], "configs": []}
            made = wire.ask("create_topics", 7, topics=[topic], timeout=30_000, validate_only=False)
            assert not made.topics[0].error_code
        ending = [
            stack.enter_context(producing(servers, kind, command_of, tmp_path))
            for kind, command_of in producers.items()
        ]
        consumers = []
        for kind, command_of in consumer_kinds.items():
            consumers.append(Consumer(servers, kind, command_of, tmp_path))
            stack.callback(consumers[-1].destroy)
        observer = stack.enter_context(Observer(members))

        def goes_on(what: str) -> None:
            """Much more is written, read and committed."""
            goal = observer.total() + 2_000
            eventually(
                lambda: observer.total() > goal, timeout_s=PATIENCE_S, what=f"{what}: more is read"
            )
            for consumer in consumers:
                consumer.check_running()

        goes_on("at first")
        eventually(
            lambda: all(each.read() for each in consumers), timeout_s=PATIENCE_S, what="all three read"
        )
        for consumer in list(consumers):
            consumer.kill()
            consumers.remove(consumer)
            goes_on("without a consumer")
            consumer.start()
            consumers.append(consumer)
        follower = next(each for each in members.members if each is not members.kafka_leader())
        follower.kill()
        goes_on("without a follower")
        follower.start()
        for _ in range(2):
            leader = members.kafka_leader()
            leader.kill()
            goes_on("without the leader")
            leader.start()
        leader = members.kafka_leader()
        killed = consumers.pop()
        killed.kill()
        leader.kill()
        goes_on("without both")
        killed.start()
        consumers.append(killed)
        leader.start()
        goes_on("at the end")
        sent = {kind: ended() for kind, ended in zip(producers, ending, strict=True)}

        records = records_of(servers)
        for kind, count in sent.items():
            numbers = {
                partition: [
                    int(value.partition(":")[2]) for value in values if value.startswith(f"{kind}:")
                ]
                for partition, values in records.items()
            }
            for partition, found in numbers.items():
                assert found == list(range(partition, count, PARTITIONS)), f"{kind} in {partition}"
        ends = {partition: len(values) for partition, values in records.items()}
        eventually(
            lambda: {partition: offsets[-1] for partition, offsets in observer.seen.items()} == ends,
            timeout_s=PATIENCE_S,
            what="all of it is read and committed",
        )
    for partition, offsets in observer.seen.items():
        assert offsets == sorted(offsets), f"partition {partition}"
    read = {(own, at): value for consumer in consumers for own, at, value in consumer.read()}
    assert read == {
        (own, at): value for own, values in records.items() for at, value in enumerate(values)
    }
