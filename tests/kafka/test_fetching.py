"""Fetches at a leader that may not be the newest one, and what a consumer is told there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from quorumlog.config import KafkaOptions
from quorumlog.errors import LedgerError, NotLeader
from quorumlog.kafka.codec import FETCH
from quorumlog.kafka.fetching import fetch, records_of
from quorumlog.kafka.forwarding import LeaderCalls
from quorumlog.kafka.machine import BatchPlace, CreateKafkaTopic, KafkaMachine, KafkaMachines, entry_of
from quorumlog.kafka.service import KafkaCall, KafkaService
from tests.kafka.batches import made_batch

TOPIC = bytes(range(16))


class Member:
    """Leads, as far as it knows. Questions to its machine wait until a majority has answered."""

    is_up = True

    def __init__(self) -> None:
        self.questions: list[Any] = []
        machines = KafkaMachines(lambda: KafkaMachine(lambda grown: None))
        machine = machines()
        create = entry_of(CreateKafkaTopic(TOPIC, "orders", 1))
        create.stamp(0, 1, create.starts.tolist(), 0)
        machine.apply(create, 0)
        self.partition = machine.by_id[TOPIC].partitions[0]
        options = KafkaOptions(listen="127.0.0.1:9092")
        reads = ThreadPoolExecutor(1)
        self.service = KafkaService(
            "n0", {"n0": "127.0.0.1:9092"}, options, machines, reads, LeaderCalls(None)
        )
        self.service.member = self  # type: ignore[assignment]
        self.service._ready_in = 1

    def enter(self, act: Any, client: object = None) -> None:
        act()

    def ask(self, machine: str, question: bytes, timeout_ms: int, done: Any, owner: object) -> None:
        self.questions.append(done)

    def fetched(self, offset: int) -> list[tuple[int, int]]:
        """Error and high watermark of each answer to a fetch, which waits for nothing."""
        answers: list[tuple[int, int]] = []

        def done(values: Any, code: int) -> None:
            (row,) = values["responses"][0]["partitions"]
            answers.append((row["error_code"], row["high_watermark"]))

        partition = SimpleNamespace(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = SimpleNamespace(topic="orders", partitions=[partition])
        fields = SimpleNamespace(max_bytes=1 << 20, min_bytes=0, max_wait=0, topics=[topic])
        client: Any = SimpleNamespace(caller=SimpleNamespace(is_checked=False))
        request: Any = SimpleNamespace(api_key=FETCH, version=12)
        fetch(self.service, KafkaCall(request, fields, client, done))
        return answers


def told(member: Member, answer: bytes | LedgerError) -> None:
    question = member.questions.pop()
    question(answer if isinstance(answer, LedgerError) else (answer, 0))


def test_a_leader_that_is_cut_off_does_not_say_that_an_offset_is_too_high() -> None:
    """A later leader has given it: told so, the consumer would begin somewhere else."""
    member = Member()
    assert member.fetched(0) == [(ErrorCode.none, 0)], "nobody else is asked"
    answers = member.fetched(7)
    assert answers == [], "what it does not know may be"
    told(member, NotLeader("another one leads"))
    assert answers == [(ErrorCode.not_leader_or_follower, 0)]


def test_an_offset_that_nobody_has_given_is_out_of_range() -> None:
    member = Member()
    answers = member.fetched(7)
    told(member, b"")
    assert answers == [(ErrorCode.offset_out_of_range, 0)]


def test_an_offset_that_comes_to_be_meanwhile_is_in_range() -> None:
    member = Member()
    answers = member.fetched(7)
    member.partition.end_offset = 7
    told(member, b"")
    assert answers == [(ErrorCode.none, 7)]


def test_a_batch_is_fetched_without_the_leader_epoch_that_its_producer_wrote() -> None:
    """A consumer takes it for that of a leader, and waits for one that is as late."""
    batch = made_batch([b"a"])
    sent = batch[:12] + (1 << 30).to_bytes(4, "big") + batch[16:]
    found = records_of(lambda position, size: sent, [BatchPlace(5, 0, len(sent))])
    assert found is not None
    expected = (5).to_bytes(8, "big") + batch[8:12] + b"\xff" * 4 + batch[16:]
    assert b"".join(found) == expected
