"""Queues of orderly members move once they are given up, or once nobody has heard of the member."""

from __future__ import annotations

from quorumlog.broker.group_commands import Assignment, CreateTopic, QueueRow
from quorumlog.broker.groups.group_state import Group, GroupState
from quorumlog.broker.groups.rebalancer import GroupMembers, allocate, with_held
from quorumlog.broker.wire import AssignmentResponse, GroupHeartbeatRequest
from tests.broker.groups.test_groups_driven import DrivenGroups

WANTS = (("orders", "*"),)
ORDERS = [("orders", 0), ("orders", 1)]


def assigned(**queues: list[QueueRow]) -> tuple[Assignment, ...]:
    return tuple(Assignment(name, WANTS, tuple(each)) for name, each in sorted(queues.items()))


def test_a_queue_that_is_held_stays_and_its_member_is_asked_for_it() -> None:
    standing = assigned(a=ORDERS)
    target = allocate({"a": WANTS, "b": WANTS}, {"orders": 2}, standing)
    assert target == assigned(a=ORDERS[:1], b=ORDERS[1:])
    held = dict.fromkeys(ORDERS, "a")
    assert with_held(target, held) == (assigned(a=ORDERS, b=[]), {"a": tuple(ORDERS[1:])})
    assert with_held(target, {ORDERS[0]: "a"}) == (target, {}), "nobody holds what moves"
    gone = allocate({"a": WANTS, "b": WANTS}, {"orders": 1}, standing)
    assert with_held(gone, held)[0] == assigned(a=ORDERS[:1], b=[]), "that queue is there no more"


def test_a_member_holds_what_it_has_not_given_up_in_this_generation() -> None:
    group = Group(generation=4, members=assigned(a=ORDERS))
    members = GroupMembers(timeout_ms=1_000)
    members.begin(GroupState({}, {"g": group}, {}))
    all_of_it = dict.fromkeys(ORDERS, "a")
    assert members.held("g", group) == all_of_it, "an earlier master knew whether it is orderly"
    members.on_heartbeat("g", "a", WANTS)
    assert members.held("g", group) == {}
    members.on_heartbeat("g", "a", WANTS, is_orderly=True)
    assert members.held("g", group) == all_of_it
    given_up = frozenset(ORDERS[1:])
    members.on_heartbeat("g", "a", WANTS, is_orderly=True, given_up=given_up, generation=3)
    assert (members.held("g", group), members.has_given_up("g", group)) == (all_of_it, False)
    changes = members.changes
    members.on_heartbeat("g", "a", WANTS, is_orderly=True, given_up=given_up, generation=4)
    assert members.changes > changes
    assert (members.held("g", group), members.has_given_up("g", group)) == ({ORDERS[0]: "a"}, True)
    members.expire(2_000.0)
    members.expire(3_000.0)
    assert members.held("g", group) == {ORDERS[0]: "a"}, "it is counted from when the clock was seen"
    members.expire(3_001.0)
    assert members.held("g", group) == {}


def test_another_member_waits_until_the_queue_is_given_up_or_its_member_is_gone() -> None:
    log = DrivenGroups()
    log.command(CreateTopic("orders", 2))

    def beat(
        member: str, generation: int = -1, given_up: tuple[QueueRow, ...] = (), waits: bool = True
    ) -> AssignmentResponse:
        answer = log.ask(
            GroupHeartbeatRequest(
                group="billing",
                member=member,
                topics=[("orders", "*")],
                generation=generation,
                wait_ms=1_000 if waits else 0,
                is_orderly=True,
                gives_up=given_up,
            )
        )
        assert isinstance(answer, AssignmentResponse), answer
        return answer

    def orders(answer: AssignmentResponse) -> list[QueueRow]:
        return [(topic, queue_id) for topic, queue_id, _ in answer.queues if topic == "orders"]

    first = beat("a")
    assert (orders(first), first.session_ms) == (ORDERS, 10_000)
    second = beat("b")
    assert orders(second) == []
    kept = beat("a", first.generation)
    (asked_for,) = [queue for queue in kept.asked_for if queue[0] == "orders"]
    assert orders(kept) == ORDERS
    assert kept.generation == second.generation == first.generation + 1
    moved = beat("a", kept.generation, (asked_for,))
    assert (moved.generation, orders(moved)) == (
        kept.generation + 1,
        [q for q in ORDERS if q != asked_for],
    )
    got = beat("b", second.generation)
    assert orders(got) == [asked_for]
    for _ in range(14):  # the other one is not heard of any more
        got = beat("b", got.generation)
    assert orders(got) == ORDERS
