"""A member of a group that waits, and whose right to the group is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorumlog.errors import Forbidden
from quorumlog.kafka.codec import JOIN_GROUP, SYNC_GROUP
from quorumlog.kafka.group_requests import join_group, sync_group
from quorumlog.kafka.service import KafkaCall, KafkaService
from tests.kafka.test_service import Member as LogMember
from tests.kafka.test_service import a_service


class Consumer:
    """Requests of one client, and the answers to them."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self.may_read = True
        self.is_member = False
        self.caller = self
        self.is_checked = True
        self.host = "localhost"
        self.member_id = ""
        self.answers: list[Any] = []

    def refusal(self, key: object, needs: object) -> Any:
        return None if self.may_read else Forbidden("it may not")

    def join(self) -> None:
        protocols = [SimpleNamespace(name="range", metadata=b"topics")]
        fields = SimpleNamespace(
            group_id="g",
            member_id=self.member_id,
            session_timeout=60_000,
            rebalance_timeout=60_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        join_group(self._service, self._call(JOIN_GROUP, 2, fields))

    def sync(self, generation: int) -> None:
        fields = SimpleNamespace(
            group_id="g", member_id=self.member_id, generation_id=generation, assignments=[]
        )
        sync_group(self._service, self._call(SYNC_GROUP, 1, fields))

    def _call(self, api_key: int, version: int, fields: Any) -> KafkaCall:
        request: Any = SimpleNamespace(api_key=api_key, version=version, client_id="c")

        def done(values: Any, code: int) -> None:
            self.answers.append(values)
            self.member_id = values.get("member_id") or self.member_id

        client: Any = self
        return KafkaCall(request, fields, client, done)


@pytest.fixture
def service() -> KafkaService:
    return a_leader()


def a_leader() -> KafkaService:
    made, member = a_service()
    member.lead(3)
    made.look()
    member.questions.pop()((b"",))
    return made


def no_more_join(service: KafkaService) -> None:
    coordinator = service.coordinator
    assert not isinstance(coordinator, ErrorCode)
    for now_ms in range(0, 30_000, 1_000):
        coordinator.tick(now_ms)


def moved(service: KafkaService) -> None:
    member: Any = service.member
    assert isinstance(member, LogMember)
    member.enter = lambda act, client=None: act()  # type: ignore[attr-defined]
    service.rights_moved()


def test_who_waits_to_join_is_told_so_and_is_out() -> None:
    a_member_that_waits_is_told_that_its_right_is_gone()


def a_member_that_waits_is_told_that_its_right_is_gone() -> None:
    service = a_leader()
    consumer, other = Consumer(service), Consumer(service)
    consumer.join()
    other.join()
    assert consumer.answers == [] == other.answers, "they wait for more members"
    consumer.may_read = False
    moved(service)
    assert [each["error_code"] for each in consumer.answers] == [ErrorCode.group_authorization_failed]
    assert other.answers == []
    no_more_join(service)
    (joined,) = other.answers
    assert [each["member_id"] for each in joined["members"]] == [other.member_id]


def test_who_waits_for_its_assignment_is_told_so_and_the_others_rebalance(service: KafkaService) -> None:
    leader, follower = Consumer(service), Consumer(service)
    leader.join()
    follower.join()
    no_more_join(service)
    generation = leader.answers[0]["generation_id"]
    follower.sync(generation)
    assert len(follower.answers) == 1, "the leader assigns"
    follower.may_read = False
    moved(service)
    assert follower.answers[-1]["error_code"] == ErrorCode.group_authorization_failed
    leader.sync(generation)
    assert leader.answers[-1]["error_code"] == ErrorCode.rebalance_in_progress


def test_who_keeps_its_right_waits_on(service: KafkaService) -> None:
    consumer = Consumer(service)
    consumer.join()
    moved(service)
    assert consumer.answers == []
    no_more_join(service)
    assert consumer.answers[0]["error_code"] == ErrorCode.none
    assert not service.rechecks, "nothing waits any more"
