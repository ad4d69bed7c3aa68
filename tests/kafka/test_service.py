"""Who leads all partitions, and since when, and what clients are told of errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorumlog.config import KafkaOptions
from quorumlog.errors import (
    BodyTooLarge,
    ConfigError,
    Forbidden,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
    RequestTimeout,
)
from quorumlog.kafka.forwarding import LeaderCalls
from quorumlog.kafka.groups import GroupCoordinator
from quorumlog.kafka.machine import KafkaMachine, KafkaMachines
from quorumlog.kafka.service import NO_NODE, KafkaService, code_of
from quorumlog.log_state.users import NO_USERS, Kind
from quorumlog.net.access import Access

SERVERS = {"n0": "127.0.0.1:9092", "n1": "127.0.0.1:9093"}


class Member:
    """As an endpoint sees it: who leads, and questions that are answered when the test says so."""

    def __init__(self) -> None:
        self.is_up = True
        self.cluster_id = "c"
        self.leads_in: int | None = None
        self.leader = "n1"
        self.addresses: dict[str, str] = {}
        self.questions: list[Callable[[Any], None]] = []

    def node(self) -> Any:
        leader = SimpleNamespace(member_id=self.leader) if self.leader else None
        store = SimpleNamespace(begin=SimpleNamespace(position=0))
        storage = SimpleNamespace(append_limit_bytes=1 << 20)
        return SimpleNamespace(
            raft=SimpleNamespace(term=self.leads_in or 0, leader=leader),
            store=store,
            config=SimpleNamespace(storage=storage),
            members=SimpleNamespace(addresses=lambda: self.addresses),
        )

    def ask(self, machine: str, question: bytes, timeout_ms: int, done: Any, owner: object) -> None:
        self.questions.append(done)

    def lead(self, term: int) -> None:
        self.leads_in, self.leader = term, "n0"

    def follow(self) -> None:
        self.leads_in, self.leader = None, "n1"


def a_service() -> tuple[KafkaService, Member]:
    machines = KafkaMachines(lambda: KafkaMachine(lambda grown: None))
    reads = ThreadPoolExecutor(1)
    options = KafkaOptions(SERVERS["n0"])
    service = KafkaService("n0", SERVERS, options, machines, reads, LeaderCalls(None))
    member = Member()
    service.member = member  # type: ignore[assignment]
    return service, member


def test_a_leader_answers_once_what_came_before_is_applied() -> None:
    service, member = a_service()
    member.lead(3)
    service.look()
    assert (service.leads, service.leader) == (False, NO_NODE)
    assert service.coordinator == ErrorCode.coordinator_load_in_progress
    (answered,) = member.questions
    service.look()
    assert not service.leads
    answered((b"",))
    assert (service.leads, service.leader) == (True, 0)
    assert isinstance(service.coordinator, GroupCoordinator)


def test_a_leader_that_was_added_later_is_found_on_its_host() -> None:
    service, member = a_service()
    member.addresses, member.leader = {"n7": "10.0.0.7:20911"}, "n7"
    service.look()
    assert (service.leader, service.nodes[7]) == (7, ("10.0.0.7", 9092))


@pytest.mark.parametrize(
    ("leader", "address", "given"),
    [
        ("n7", "10.0.0.7:20911", "n0=127.0.0.1:9092,n1=127.0.0.1:9093"),
        ("n7", "127.0.0.1:20911", ""),  # the port of n0
        ("m1", "10.0.0.7:20911", ""),  # the node id of n1
        ("other", "10.0.0.7:20911", ""),
    ],
)
def test_a_leader_that_clients_cannot_find_is_logged(
    caplog: pytest.LogCaptureFixture, leader: str, address: str, given: str
) -> None:
    service, member = a_service()
    service.options = KafkaOptions(SERVERS["n0"], given)
    member.addresses, member.leader = {leader: address}, leader
    service.look()
    service.look()
    assert (service.leader, sorted(service.nodes)) == (NO_NODE, [0, 1])
    (line,) = caplog.messages
    assert f"{leader} leads" in line
    assert "--kafka-servers" in line


def test_two_members_do_not_share_a_node_id() -> None:
    machines = KafkaMachines(lambda: KafkaMachine(lambda grown: None))
    servers = {"east1": "10.0.0.1:9092", "west1": "10.0.0.2:9092"}
    options = KafkaOptions("10.0.0.1:9092")
    with pytest.raises(ConfigError, match="end with the same number"):
        KafkaService("east1", servers, options, machines, ThreadPoolExecutor(1), LeaderCalls(None))


def test_an_answer_for_an_earlier_term_counts_for_nothing() -> None:
    service, member = a_service()
    member.lead(3)
    service.look()
    member.follow()
    service.look()
    assert (service.leader, service.coordinator) == (1, ErrorCode.not_coordinator)
    member.lead(5)
    service.look()
    of_term_3, of_term_5 = member.questions
    of_term_3((b"",))
    assert not service.leads
    of_term_5((b"",))
    assert service.leads


def test_a_leader_answers_once_it_is_known_who_may_do_what() -> None:
    """Right after a start it would refuse every request, as who does not lead."""
    service, member = a_service()
    service.access = Access()
    service.access.learn(None, "the log is read")
    member.lead(3)
    service.look()
    member.questions.pop()((b"",))
    assert (service.leads, service.leader) == (False, NO_NODE)
    assert service.coordinator == ErrorCode.coordinator_load_in_progress
    service.access.learn(NO_USERS)
    service.look()
    assert (service.leads, service.leader) == (True, 0)
    assert isinstance(service.coordinator, GroupCoordinator)


def test_a_question_that_failed_is_asked_again() -> None:
    service, member = a_service()
    member.lead(3)
    service.look()
    member.questions.pop()(LeaderNotReady("not yet"))
    assert not service.leads
    service.look()
    member.questions.pop()((b"",))
    assert service.leads


def test_who_leads_no_more_has_no_groups() -> None:
    service, member = a_service()
    member.lead(3)
    service.look()
    member.questions.pop()((b"",))
    member.is_up = False
    service.look()
    assert (service.leads, service.leader) == (False, NO_NODE)
    assert service.coordinator == ErrorCode.not_coordinator


@pytest.mark.parametrize(
    ("error", "topic", "group"),
    [
        (NotLeader("it"), "not_leader_or_follower", "not_coordinator"),
        (LeaderNotReady("it"), "not_leader_or_follower", "not_coordinator"),
        (OutcomeUnknown("it"), "request_timed_out", "coordinator_load_in_progress"),
        (RequestTimeout("it"), "request_timed_out", "coordinator_load_in_progress"),
        (PendingFull("it"), "not_enough_replicas", "coordinator_load_in_progress"),
        (BodyTooLarge("it"), "message_too_large", "message_too_large"),
        (Forbidden("it"), "topic_authorization_failed", "group_authorization_failed"),
    ],
)
def test_clients_are_told_what_they_may_try_again(error: LedgerError, topic: str, group: str) -> None:
    assert code_of(error, Kind.TOPIC).name == topic
    assert code_of(error, Kind.CONSUMER_GROUP).name == group
