"""Topics, groups and offsets as a state machine: against a naive model, saved and loaded, refused."""

from __future__ import annotations

import io

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quorumlog.broker.errors import (
    GroupInUse,
    StaleGeneration,
    TopicExists,
    UnknownConsumerGroup,
    UnknownGroupMember,
    UnknownTopic,
)
from quorumlog.broker.group_commands import (
    Assign,
    Assignment,
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    GroupRow,
    GroupsQuestion,
    ResetOffsets,
    SkipDelayed,
    TrimQueues,
    UpdateTopic,
    encode,
    read_answer,
)
from quorumlog.broker.groups.group_state import GROUPS as MACHINE_NAME
from quorumlog.broker.groups.group_state import GroupMachine, loaded_state, saved_bytes
from quorumlog.broker.groups.rebalancer import allocate
from quorumlog.errors import BadRequest, LedgerError
from quorumlog.testing import SimulatedLog


def said(machine: GroupMachine, command: Command) -> object:
    return read_answer(machine.carry_out(memoryview(encode(command))), object)


def with_group() -> GroupMachine:
    machine = GroupMachine()
    said(machine, CreateTopic("orders", 4))
    said(machine, CreateGroup("billing"))
    reads = (("orders", "*"),)
    both = (
        Assignment("a", reads, (("orders", 0), ("orders", 1))),
        Assignment("b", reads, (("orders", 2), ("orders", 3))),
    )
    said(machine, Assign("billing", 1, both))
    return machine


NESTED = b"\x91" * 5_000 + b"\xc0"
COMMAND, QUESTION = encode(CreateTopic("x", 4)), encode(GroupsQuestion("x"))
UNREADABLE = [
    pytest.param(b"", b"", id="nothing"),
    pytest.param(COMMAND.replace(b"x", b"\xff"), QUESTION.replace(b"x", b"\xff"), id="no text"),
    pytest.param(
        bytes([COMMAND[0] + 1]) + COMMAND[1:] + NESTED,
        bytes([QUESTION[0] + 1]) + QUESTION[1:] + NESTED,
        id="nested",
    ),
]
"""Commands and questions; a field of a later release is skipped."""


@pytest.mark.parametrize(("command", "question"), UNREADABLE)
def test_what_cannot_be_read_is_refused_and_stops_no_machine(command: bytes, question: bytes) -> None:
    machine = with_group()
    before = machine.state
    for answer in (machine.carry_out(command), machine.query(question)):
        with pytest.raises(BadRequest):
            read_answer(answer, object)
    assert machine.state is before


def test_an_offset_goes_forward_only_until_it_is_reset() -> None:
    machine = with_group()
    said(machine, CommitOffsets("billing", 1, (("a", (("orders", 0, 7),)),)))
    said(machine, CommitOffsets("billing", 1, (("a", (("orders", 0, 3),)),)))
    assert machine.state.groups["billing"].offsets == {("orders", 0): 7}
    assert said(machine, ResetOffsets("billing", (("orders", 0, 2),))) == 2
    assert machine.state.groups["billing"].offsets == {("orders", 0): 2}
    with pytest.raises(StaleGeneration, match="assigned anew"):
        said(machine, CommitOffsets("billing", 1, (("a", (("orders", 0, 9),)),)))


def test_only_who_reads_a_queue_now_commits_it() -> None:
    machine = with_group()
    with pytest.raises(UnknownGroupMember, match="a does not read queue 2"):
        said(machine, CommitOffsets("billing", 1, (("a", (("orders", 0, 1), ("orders", 2, 1))),)))
    with pytest.raises(UnknownGroupMember, match="without a name"):
        said(machine, CommitOffsets("billing", 1, (("", (("orders", 0, 1),)),)))
    assert not machine.state.groups["billing"].offsets  # nothing of the first one either
    said(machine, Assign("billing", 2, ()))
    said(machine, CommitOffsets("billing", 2, (("", (("orders", 2, 5),)),)))
    assert machine.state.groups["billing"].offsets == {("orders", 2): 5}


def test_generations_follow_each_other_and_share_no_queue() -> None:
    machine = with_group()
    with pytest.raises(StaleGeneration):
        said(machine, Assign("billing", 3, ()))
    two = tuple(Assignment(name, (("orders", "*"),), (("orders", 0),)) for name in "ab")
    with pytest.raises(BadRequest, match="two members"):
        said(machine, Assign("billing", 2, two))
    with pytest.raises(GroupInUse):
        said(machine, DeleteGroup("billing"))


def test_a_topic_made_again_shows_nothing_of_the_old_one() -> None:
    machine = with_group()
    said(machine, CommitOffsets("billing", 1, (("a", (("orders", 0, 7),)),)))
    said(machine, DeleteTopic("orders"))
    said(machine, CreateTopic("orders", 2, begins=(9, 4)))
    assert machine.state.topics["orders"].begins == (9, 4)
    assert not machine.state.groups["billing"].offsets
    said(machine, CreateTopic("taken-over", 1, begins=(9,)))  # nobody has deleted anything of it
    assert machine.state.topics["taken-over"].begins == (0,)
    said(machine, UpdateTopic("orders", queues=4, begins=(0, 0, 5, 6)))
    said(machine, TrimQueues((("orders", 1, 6), ("orders", 0, 2), ("gone", 0, 1))))
    assert machine.state.topics["orders"].begins == (9, 6, 5, 6)
    said(machine, CreateTopic("orders", 4))  # its first answer was lost
    with pytest.raises(TopicExists):
        said(machine, CreateTopic("orders", 5))
    with pytest.raises(BadRequest, match="has 4 queues"):
        said(machine, UpdateTopic("orders", queues=1))


@pytest.mark.parametrize("name", ["%RETRY%billing", "SCHEDULE_TOPIC_XXXX", "a b", "", "ä"])
def test_names_of_the_broker_are_no_topics_of_people(name: str) -> None:
    machine = with_group()
    with pytest.raises(BadRequest):
        said(machine, CreateTopic(name, 1))
    if name in machine.state.topics:
        with pytest.raises(BadRequest, match="reserved for the broker"):
            said(machine, DeleteTopic(name))


def test_a_group_has_topics_of_its_own_and_they_end_with_it() -> None:
    machine = with_group()
    assert {"%RETRY%billing", "%DLQ%billing"} < machine.state.topics.keys()
    said(machine, Assign("billing", 2, ()))
    said(machine, DeleteGroup("billing"))
    assert "%RETRY%billing" not in machine.state.topics
    with pytest.raises(UnknownConsumerGroup):
        said(machine, CommitOffsets("billing", 2, ()))


def test_a_delay_level_begins_further_on_only_from_where_it_stands() -> None:
    machine = with_group()
    said(machine, SkipDelayed(3, 0, 12))
    with pytest.raises(StaleGeneration):
        said(machine, SkipDelayed(3, 0, 20))
    said(machine, SkipDelayed(1, 0, 7))
    assert machine.state.delayed == {3: 12, 1: 7}
    assert loaded_state(saved_bytes(machine.state)) == machine.state, "a snapshot has it"


# ---------------------------------------------------------------- any order of commands

NAMES = st.sampled_from(["t1", "t2"])
GROUPS = st.sampled_from(["g1", "g2"])
MEMBERS = st.sampled_from(["a", "b", "c"])


class AnyOrder(RuleBasedStateMachine):
    """A model that knows only promises: offsets by group, generations, and who was refused."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = GroupMachine()
        self.high: dict[tuple[str, str, int], int] = {}
        self.generations: dict[str, int] = {}

    def _try(self, command: Command) -> bool:
        before = saved_bytes(self.machine.state)
        try:
            said(self.machine, command)
        except LedgerError:
            assert saved_bytes(self.machine.state) == before, "refused, and yet something changed"
            return False
        return True

    @rule(topic=NAMES, queues=st.integers(1, 3))
    def create_topic(self, topic: str, queues: int) -> None:
        self._try(CreateTopic(topic, queues))

    @rule(topic=NAMES)
    def delete_topic(self, topic: str) -> None:
        if self._try(DeleteTopic(topic)):
            self.high = {key: at for key, at in self.high.items() if key[1] != topic}

    @rule(group=GROUPS)
    def create_group(self, group: str) -> None:
        if self._try(CreateGroup(group)):
            self.generations[group] = 0

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        if self._try(DeleteGroup(group)):
            del self.generations[group]
            self.high = {key: at for key, at in self.high.items() if key[0] != group}

    @rule(group=GROUPS, members=st.sets(MEMBERS), ahead=st.integers(0, 2))
    def assign(self, group: str, members: set[str], ahead: int) -> None:
        state = self.machine.state
        wants = dict.fromkeys(members, (("t1", "*"), ("t2", "*")))
        standing = state.groups[group].members if group in state.groups else ()
        handed = allocate(wants, {name: topic.queues for name, topic in state.topics.items()}, standing)
        generation = self.generations.get(group, 0) + ahead
        if self._try(Assign(group, generation, handed)) if generation else False:
            assert ahead == 1
            self.generations[group] = generation

    @rule(
        group=GROUPS,
        behind=st.integers(0, 2),
        member=st.sampled_from(["", "a", "b", "c"]),
        topic=NAMES,
        queue=st.integers(0, 3),
        offset=st.integers(0, 50),
    )
    def commit(self, group: str, behind: int, member: str, topic: str, queue: int, offset: int) -> None:
        generation = max(0, self.generations.get(group, 0) - behind)
        rows = ((member, ((topic, queue, offset),)),)
        if self._try(CommitOffsets(group, generation, rows)):
            assert generation == self.generations[group]
            made = self.machine.state.topics.get(topic)
            if made is not None and queue < made.queues:
                key = (group, topic, queue)
                self.high[key] = max(self.high.get(key, 0), offset)

    @rule(group=GROUPS, topic=NAMES, queue=st.integers(0, 3), offset=st.integers(0, 50))
    def reset(self, group: str, topic: str, queue: int, offset: int) -> None:
        if self._try(ResetOffsets(group, ((topic, queue, offset),))):
            self.high[group, topic, queue] = offset
            self.generations[group] += 1

    @invariant()
    def offsets_are_the_highest_ever_committed(self) -> None:
        offsets = {
            (name, *queue): at
            for name, group in self.machine.state.groups.items()
            for queue, at in group.offsets.items()
        }
        assert offsets == self.high

    @invariant()
    def saved_and_loaded_it_is_the_same(self) -> None:
        data = saved_bytes(self.machine.state)
        other = GroupMachine()
        other.load(io.BytesIO(data))
        assert other.state == self.machine.state
        assert saved_bytes(other.state) == data


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order = AnyOrder.TestCase


# ---------------------------------------------------------------- who reads what


def test_queues_are_shared_out_evenly_and_stay_where_they_are() -> None:
    wants = dict.fromkeys("abc", (("orders", "*"),))
    first = allocate(wants, {"orders": 8})
    assert sorted(len(each.queues) for each in first) == [2, 3, 3]
    fewer = allocate({m: wants[m] for m in "ab"}, {"orders": 8}, first)
    for each in fewer:
        assert set(next(f for f in first if f.member == each.member).queues) <= set(each.queues)
    assert sum(len(each.queues) for each in fewer) == 8
    again = allocate(wants, {"orders": 8}, first)
    assert again == first
    mixed = allocate({"a": (("x", "*"),), "b": (("x", "*"), ("y", "*"))}, {"x": 1, "y": 1, "z": 3})
    assert sorted(queue for each in mixed for queue in each.queues) == [("x", 0), ("y", 0)]


# ---------------------------------------------------------------- on a log with faults


def test_offsets_outlive_every_fault_of_the_log() -> None:
    log = SimulatedLog(
        5, faults=("kill", "partition"), fault_every_ms=500, state_machines={MACHINE_NAME: GroupMachine}
    )

    def send(command: Command) -> object:
        while True:
            try:
                receipt = log.append(encode(command), machine=MACHINE_NAME)
            except LedgerError:
                continue
            assert receipt.result is not None
            return read_answer(receipt.result, object)

    send(CreateTopic("orders", 2))
    send(CreateGroup("billing"))
    send(CommitOffsets("billing", 0, (("", (("orders", 1, 7),)),)))  # soon in snapshots alone
    for offset in range(1, 40):
        send(CommitOffsets("billing", 0, (("", (("orders", 0, offset),)),)))
    log.run_for(4_000)  # who is killed begins again with a snapshot
    log.heal()
    with pytest.raises(UnknownTopic):
        send(ResetOffsets("billing", (("gone", 0, 1),)))
    answer = log.ask(MACHINE_NAME, encode(GroupsQuestion("billing")))
    (row,) = read_answer(answer, list[GroupRow])
    assert row.offsets == (("orders", 0, 39), ("orders", 1, 7))
