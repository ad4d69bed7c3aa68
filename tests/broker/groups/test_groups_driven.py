"""Topics and groups on three simulated members that do not fail: what the master lets in, and what it
does by the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.broker.errors import NoSuchMessage, QueueOffsetOutOfRange, TooManyNames
from quorumlog.broker.group_commands import (
    CreateTopic,
    DeleteTopic,
    GroupRow,
    GroupsQuestion,
    ResetOffsets,
    UpdateTopic,
    encode,
    read_answer,
)
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.groups.rebalancer import Proposals
from quorumlog.broker.message import SCHEDULE_TOPIC
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    AssignmentResponse,
    CommitRequest,
    DoneResponse,
    GroupAnswer,
    GroupCommandRequest,
    GroupHeartbeatRequest,
    GroupQuestionRequest,
    OpenSessionRequest,
)
from quorumlog.errors import BadRequest
from quorumlog.log_state.control_entries import TOKEN_BYTES
from quorumlog.net.frame import Frame
from quorumlog.node.operator_orders import ResetOutcome
from quorumlog.testing.member import SimMember
from quorumlog.testing.wall_clock import BEGINNING_MS
from sim.clients import asked_alone
from sim.groups.sim_groups import SimGroupBrokers
from sim.log.faults.wall_clocks import YEAR_MS
from tests.broker.dledger.test_simulated import PATIENCE_MS, DrivenBrokers
from tests.broker.groups.test_group_machine import UNREADABLE
from tests.sim.scenario import QUIET

KEEPS_MS = 2_000
QUEUE = QueueKey("orders", 0)


class DrivenGroups(DrivenBrokers):
    brokers: SimGroupBrokers

    def __init__(self, *, time_marks: bool = False) -> None:
        options = GroupOptions(retention_interval_ms=500.0)
        profile = replace(QUIET, time_marks=time_marks)
        super().__init__(profile, brokers=SimGroupBrokers(options))
        self.master = self.await_master()

    def ask(self, message: AnyBrokerMessage) -> Any:  # type: ignore[override]
        """What the master answers, or its refusal."""
        told: list[Any] = []
        master = asked_alone(self.master.member_id)
        self.client.ask(message, told.append, target=master, timeout_ms=PATIENCE_MS)
        self.until(lambda: len(told) > 0, "answer")
        return told[0].message if isinstance(told[0], Frame) else told[0]

    def command(self, command: Any) -> Any:
        answer = self.ask(GroupCommandRequest(body=encode(command)))
        return read_answer(answer.body, object) if isinstance(answer, GroupAnswer) else answer

    def join(self, member: str = "m", generation: int = -1) -> AssignmentResponse:
        request = GroupHeartbeatRequest(
            group="billing",
            member=member,
            topics=[("orders", "*")],
            generation=generation,
            wait_ms=1_000,
        )
        answer = self.ask(request)
        assert isinstance(answer, AssignmentResponse), answer
        return answer

    def offsets(self) -> dict[tuple[str, int], int]:
        answer = self.ask(GroupQuestionRequest(body=encode(GroupsQuestion("billing"))))
        (row,) = read_answer(answer.body, list[GroupRow])
        return {(topic, queue_id): at for topic, queue_id, at in row.offsets}

    def end_index(self) -> int:
        return self.master.node.store.end.index


def messages(log: DrivenGroups, member: SimMember) -> tuple[int, int]:
    """Which are shown."""
    reader = log.brokers.brokers[member.member_id].reader
    pulled = reader.pull(QUEUE, reader.offset_at(QUEUE, 0))
    return pulled.min_offset, pulled.max_offset


def test_messages_that_are_older_than_their_topic_keeps_are_not_shown() -> None:
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1, retention_ms=KEEPS_MS))
    log.command(CreateTopic("others", 1))
    log.put_and_wait(log.master, b"old 1", b"old 2")
    log.put_and_wait(log.master, b"other", topic="others")
    log.run_for(KEEPS_MS - 800)
    for member in log.members:
        assert messages(log, member) == (0, 2)
    assert log.put_and_wait(log.master, b"new").queue_offset == 2
    log.run_for(1_600)
    for member in log.members:
        assert messages(log, member) == (2, 3)
        with pytest.raises(QueueOffsetOutOfRange):
            log.brokers.brokers[member.member_id].reader.pull(QUEUE, 1)
        reader = log.brokers.brokers[member.member_id].reader
        assert len(reader.pull(QueueKey("others", 0), 0).records) == 1
    settled = log.end_index()
    log.run_for(KEEPS_MS + 1_000)
    assert messages(log, log.master) == (3, 3)
    assert log.end_index() == settled + 1  # one entry for what has become too old, and none by the clock


def test_nobody_commits_or_is_sent_behind_the_end_of_a_queue() -> None:
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1))
    log.put_and_wait(log.master, b"1", b"2")
    joined = log.join()
    assert ("orders", 0, -1) in joined.queues

    def commit(offset: int, queue_id: int = 0) -> Any:
        return log.ask(
            CommitRequest(
                group="billing",
                member="m",
                generation=joined.generation,
                offsets=[("orders", queue_id, offset)],
            )
        )

    assert isinstance(commit(2), DoneResponse)
    for offset, queue_id in ((3, 0), (-1, 0), (0, -1), (2**63, 0)):
        assert isinstance(commit(offset, queue_id), BadRequest), (offset, queue_id)
    refused = log.command(ResetOffsets("billing", (("orders", 0, 3),)))
    assert isinstance(refused, BadRequest)
    assert "ends at 2" in str(refused)
    assert log.offsets() == {("orders", 0): 2}
    assert log.command(ResetOffsets("billing", (("orders", 0, 1),))) == joined.generation + 1
    again = log.join(generation=joined.generation)
    assert again.resets == (("orders", 0),)
    assert not log.join("n", generation=again.generation).resets  # it has seen that already


def test_what_no_member_could_apply_is_not_let_in() -> None:
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1))
    log.join()
    before = log.end_index()
    for member, topics in (("", [("orders", "*")]), ("m" * 300, []), ("m", [("", "*")])):
        request = GroupHeartbeatRequest(group="billing", member=member, topics=topics)
        assert isinstance(log.ask(request), BadRequest), (member, topics)
    for command, _ in (each.values for each in UNREADABLE):
        assert isinstance(log.ask(GroupCommandRequest(body=command)), BadRequest), command[:9]
    mine = OpenSessionRequest(producer="%SCHEDULE%1@0", token=bytes(TOKEN_BYTES))
    assert "the broker's own" in str(log.ask(mine))
    log.run_for(300)
    assert log.end_index() == before


def test_a_clock_that_jumps_hides_nothing() -> None:
    """By the master's own clock all would be a year old."""
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1, retention_ms=KEEPS_MS))
    log.put_and_wait(log.master, b"new")
    log.master.wall_clock.set(log.cluster.now_ms, jump_ms=365 * 86_400_000)
    log.run_for(KEEPS_MS - 1_000)
    assert messages(log, log.master) == (0, 1)
    log.run_for(2_000)
    assert messages(log, log.master) == (1, 1)  # the clocks of the others have gone on


def set_clocks(log: DrivenGroups, jump_ms: int) -> None:
    for member in log.members:
        member.wall_clock.set(log.cluster.now_ms, jump_ms=jump_ms)
    log.run_for(1_000)  # until every clock is told


def test_clocks_that_jump_together_hide_nothing_and_the_topic_goes_on() -> None:
    """By all their clocks everything would be ten years old, and what came meanwhile of that time."""
    log = DrivenGroups(time_marks=True)
    log.command(CreateTopic("orders", 1, retention_ms=KEEPS_MS))
    log.put_and_wait(log.master, b"before")
    set_clocks(log, 10 * YEAR_MS)
    result = log.put_and_wait(log.master, b"meanwhile")
    assert abs(result.store_time_ms - BEGINNING_MS - log.cluster.now_ms) < 1_000
    assert messages(log, log.master) == (0, 2)
    set_clocks(log, -10 * YEAR_MS)
    log.run_for(KEEPS_MS)
    assert messages(log, log.master) == (2, 2)


def test_behind_a_reset_of_the_clock_a_topic_keeps_its_messages_as_long_as_it_says() -> None:
    """Its clocks were ten years ahead when it began: messages say so for ever."""
    log = DrivenGroups(time_marks=True)
    set_clocks(log, 10 * YEAR_MS)
    log.command(CreateTopic("orders", 1, retention_ms=KEEPS_MS))
    assert log.put_and_wait(log.master, b"1", b"2").store_time_ms > BEGINNING_MS + 9 * YEAR_MS
    set_clocks(log, -10 * YEAR_MS)
    log.run_for(KEEPS_MS)
    assert messages(log, log.master) == (0, 2)
    found: list[ResetOutcome] = []
    log.master.enter(lambda: log.master.node.orders.reset_clock(found.append))
    log.until(lambda: len(found) > 0, "reset")
    log.run_for(500)
    result = log.put_and_wait(log.master, b"3")
    assert abs(result.store_time_ms - BEGINNING_MS - log.cluster.now_ms) < 1_000
    log.run_for(KEEPS_MS - 1_000)
    assert messages(log, log.master) == (0, 3), "they count as stored at the reset"
    log.run_for(700)
    assert messages(log, log.master) == (2, 3)
    log.hand_over(log.master, log.followers()[0])
    log.master = log.await_master()
    log.run_for(KEEPS_MS)
    assert messages(log, log.master) == (3, 3)
    result = log.put_and_wait(log.master, b"4")
    assert abs(result.store_time_ms - BEGINNING_MS - log.cluster.now_ms) < 1_000


@pytest.mark.parametrize("jump_together", [False, True])
def test_a_clock_that_jumps_releases_nothing(jump_together: bool) -> None:
    log = DrivenGroups(time_marks=True)
    log.put_and_wait(log.master, b"delayed", topic=SCHEDULE_TOPIC)  # of level 1: a second
    log.run_for(100)
    for member in log.members if jump_together else [log.master]:
        member.wall_clock.set(log.cluster.now_ms, jump_ms=365 * 86_400_000)
    extension = log.brokers.brokers[log.master.member_id].groups
    assert isinstance(extension, GroupService)
    log.run_for(700)
    assert extension.scheduler.released == 0
    log.until(lambda: extension.scheduler.released == 1, "release")


def test_the_state_has_so_many_topics_and_groups_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1))
    log.command(CreateTopic("gone", 1))
    log.command(DeleteTopic("gone"))
    names = len(log.brokers.brokers[log.master.member_id].shown_topics)
    monkeypatch.setattr(Proposals, "most_topics", names + 1)
    monkeypatch.setattr(Proposals, "most_groups", 1)
    refused = log.command(CreateTopic("more", 1))
    assert isinstance(refused, TooManyNames), refused
    assert log.command(CreateTopic("orders", 1)) is None, "what is there may be said again"
    log.join()
    other = GroupHeartbeatRequest(group="other", member="m", topics=[("orders", "*")])
    assert isinstance(log.ask(other), TooManyNames)


def test_a_master_lets_in_so_many_queues_of_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs every member something, and a short name may have thousands."""
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1))
    topics = log.brokers.brokers[log.master.member_id].shown_topics
    queues = sum(topics.values())
    monkeypatch.setattr(Proposals, "most_queues", queues + 3)
    refused = log.command(CreateTopic("more", 4))
    assert isinstance(refused, TooManyNames), refused
    assert f"all topics have {queues} queues, and 4 more" in str(refused)
    assert log.command(CreateTopic("more", 2)) is None
    assert isinstance(log.command(UpdateTopic("orders", 3)), TooManyNames)
    assert log.command(UpdateTopic("orders", 2)) is None
    assert log.command(UpdateTopic("orders", retention_ms=5)) is None, "which makes none"
    assert log.command(CreateTopic("more", 2)) is None, "what is there may be said again"


def test_a_message_that_is_not_shown_any_more_is_not_found_by_its_id_either() -> None:
    log = DrivenGroups()
    log.command(CreateTopic("orders", 1))
    stored = log.put_and_wait(log.master, b"1")
    log.run_for(100)  # it is dispatched
    reader = log.brokers.brokers[log.master.member_id].reader
    (found,) = reader.at_position(stored.physical_offset).messages()
    assert found.body == b"1"
    log.command(DeleteTopic("orders"))
    with pytest.raises(NoSuchMessage, match="no such topic"):
        reader.at_position(stored.physical_offset)
