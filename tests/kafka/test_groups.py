"""Consumer groups in virtual time, as their members see them."""

from __future__ import annotations

from itertools import count

import pytest
from kio.schema.errors import ErrorCode

from quorumlog.kafka.groups import (
    GroupCoordinator,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    ListedGroup,
    SyncAnswer,
    SyncRequest,
)

NONE = ErrorCode.none


class Groups:
    """A coordinator whose time moves when a test says so."""

    def __init__(self, limits: GroupLimits | None = None) -> None:
        ids = count(1)
        self.coordinator = GroupCoordinator(lambda: f"{next(ids)}", limits or GroupLimits())
        self.now_ms = 0

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.coordinator.tick(self.now_ms)

    def join(
        self,
        member: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"topics"),),
        needs_member_id: bool = False,
        may_skip: bool = False,
        session_ms: int = 10_000,
        group: str = "g",
        kind: str = "consumer",
    ) -> list[JoinAnswer]:
        """Where the answer arrives."""
        answers: list[JoinAnswer] = []
        request = JoinRequest(
            group,
            member,
            instance,
            "c",
            "host",
            session_ms,
            60_000,
            kind,
            protocols,
            needs_member_id,
            may_skip,
        )
        self.coordinator.join(request, answers.append)
        return answers

    def sync(
        self, answer: JoinAnswer, instance: str | None = None, **assignments: bytes
    ) -> list[SyncAnswer]:
        answers: list[SyncAnswer] = []
        assigned = tuple((name.replace("_", "-"), data) for name, data in assignments.items())
        request = SyncRequest("g", answer.member, instance, answer.generation, assignments=assigned)
        self.coordinator.sync(request, answers.append)
        return answers

    def heartbeat(self, answer: JoinAnswer, instance: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat("g", answer.member, instance, answer.generation)

    def commit(self, answer: JoinAnswer, instance: str | None = None) -> ErrorCode:
        return self.coordinator.check_commit("g", answer.member, instance, answer.generation)

    def state(self) -> str:
        described = self.coordinator.describe("g")
        return "-" if described is None else described.state

    def formed(self, members: int, instances: bool = False) -> list[JoinAnswer]:
        """A stable group, whose leader comes first; each is assigned its place in the list."""
        waiting = [self.join(instance=f"i{n}" if instances else None) for n in range(members)]
        self.pass_ms(3_000)
        self.pass_ms(3_000)
        joined = [one for (one,) in waiting]
        parts = {each.member.replace("-", "_"): b"%d" % n for n, each in enumerate(joined)}
        synced = [
            self.sync(each, f"i{n}" if instances else None, **(parts if each.members else {}))
            for n, each in reversed(list(enumerate(joined)))
        ]
        assert [one.assignment for (one,) in reversed(synced)] == [b"%d" % n for n in range(members)]
        assert self.state() == "Stable"
        return joined


def test_those_who_start_together_are_one_generation() -> None:
    groups = Groups()
    first = groups.join(protocols=(("sticky", b"s1"), ("range", b"r1")))
    second = groups.join(protocols=(("range", b"r2"), ("roundrobin", b"")))
    assert groups.state() == "PreparingRebalance"
    groups.pass_ms(2_999)
    assert (first, second) == ([], []), "more may come"
    groups.pass_ms(1)
    groups.pass_ms(3_000)
    (leader,), (follower,) = first, second
    assert (leader.error, leader.generation, leader.protocol) == (NONE, 1, "range")
    assert leader.leader == follower.leader == leader.member != follower.member
    assert [each.metadata for each in leader.members] == [b"r1", b"r2"]
    assert follower.members == ()
    waiting = groups.sync(follower)
    assert (waiting, groups.state()) == ([], "CompletingRebalance")
    assert groups.heartbeat(follower) is NONE
    assert groups.commit(follower) is ErrorCode.rebalance_in_progress
    assert groups.sync(leader, c_1=b"a", c_2=b"b") == [SyncAnswer(NONE, "consumer", "range", b"a")]
    assert waiting == [SyncAnswer(NONE, "consumer", "range", b"b")]
    assert groups.commit(follower) is NONE
    described = groups.coordinator.describe("g")
    assert described is not None
    assert (described.state, described.protocol_type, described.protocol) == (
        "Stable",
        "consumer",
        "range",
    )
    assert [(each.client_host, each.metadata, each.assignment) for each in described.members] == [
        ("host", b"r1", b"a"),
        ("host", b"r2", b"b"),
    ]
    assert groups.coordinator.list_groups() == [ListedGroup("g", "consumer", "Stable")]


def test_many_who_start_slowly_are_waited_for_within_their_rebalance_timeout() -> None:
    groups = Groups()
    first = groups.join(session_ms=10_000)
    for _ in range(19):
        groups.pass_ms(2_000)
        groups.join()
        groups.pass_ms(1_000)
    assert first == []
    groups.pass_ms(3_000)
    (answer,) = first
    assert len(answer.members) == 20


def test_one_that_comes_makes_all_join_again_and_one_that_leaves_as_well() -> None:
    groups = Groups()
    (old,) = groups.formed(1)
    new = groups.join()
    assert new == [], "the old one has not joined again"
    assert groups.heartbeat(old) is ErrorCode.rebalance_in_progress
    assert groups.commit(old) is NONE, "it may save its positions before it gives up its partitions"
    (again,) = groups.join(old.member)
    (came,) = new
    assert again.generation == came.generation == 2
    assert groups.commit(old) is ErrorCode.illegal_generation
    assert groups.heartbeat(old) is ErrorCode.illegal_generation
    assert groups.sync(old)[0].error is ErrorCode.illegal_generation
    follower = groups.sync(came)
    assert groups.coordinator.leave("g", ((again.member, None), ("nobody", None))) == (
        NONE,
        (NONE, ErrorCode.unknown_member_id),
    )
    assert follower == [SyncAnswer(ErrorCode.rebalance_in_progress)], "the one that assigns is gone"
    assert groups.heartbeat(again) is ErrorCode.unknown_member_id
    (alone,) = groups.join(came.member)
    assert (alone.generation, alone.leader) == (3, came.member)
    assert groups.coordinator.leave("g", ((came.member, None),)) == (NONE, (NONE,))
    assert groups.state() == "Empty"
    assert groups.coordinator.leave("g", (("nobody", None),)) == (NONE, (ErrorCode.unknown_member_id,))
    assert groups.heartbeat(came) is ErrorCode.unknown_member_id


def test_leaving_what_one_is_not_in_disturbs_nobody() -> None:
    groups = Groups()
    (member,) = groups.formed(1)
    assert groups.coordinator.leave("g", (("nobody", None),)) == (NONE, (ErrorCode.unknown_member_id,))
    assert groups.heartbeat(member) is NONE


def test_one_that_is_silent_is_out_and_one_that_speaks_stays() -> None:
    groups = Groups()
    silent, speaking = groups.formed(2)
    for _ in range(3):
        groups.pass_ms(4_000)
        groups.heartbeat(speaking)
    assert groups.heartbeat(silent) is ErrorCode.unknown_member_id
    assert groups.commit(silent) is ErrorCode.unknown_member_id
    assert groups.heartbeat(speaking) is ErrorCode.rebalance_in_progress
    (alone,) = groups.join(speaking.member)
    assert [each.member for each in alone.members] == [speaking.member]


def test_one_that_does_not_join_again_in_time_is_out() -> None:
    groups = Groups()
    leader, other = groups.formed(2)
    again = groups.join(leader.member)
    for _ in range(13):
        groups.pass_ms(5_000)
        groups.heartbeat(other)
    (answer,) = again
    assert [each.member for each in answer.members] == [leader.member]
    assert groups.heartbeat(other) is ErrorCode.unknown_member_id


def test_one_that_does_not_sync_in_time_is_out() -> None:
    groups = Groups()
    waiting = [groups.join() for _ in range(2)]
    groups.pass_ms(6_000)
    groups.pass_ms(6_000)
    (leader,), (follower,) = waiting
    synced = groups.sync(follower)
    for _ in range(13):
        groups.pass_ms(5_000)
        groups.heartbeat(leader)
        groups.heartbeat(follower)
    assert synced == [SyncAnswer(ErrorCode.rebalance_in_progress)]
    assert groups.heartbeat(leader) is ErrorCode.unknown_member_id


def test_who_missed_the_answer_to_its_join_gets_it_again() -> None:
    groups = Groups()
    leader, follower = groups.formed(2)
    assert groups.join(follower.member) == [follower]
    assert groups.heartbeat(leader) is NONE, "nobody has to join again"
    assert groups.join(leader.member) == [], "a leader that joins asks for a rebalance"
    assert groups.heartbeat(follower) is ErrorCode.rebalance_in_progress


def test_a_join_that_is_sent_twice_is_answered_twice() -> None:
    groups = Groups()
    leader, _ = groups.formed(2)
    first = groups.join(leader.member)
    second = groups.join(leader.member)
    assert [each.error for each in first] == [ErrorCode.rebalance_in_progress]
    assert second == []


def test_a_changed_subscription_is_a_rebalance() -> None:
    groups = Groups()
    leader, follower = groups.formed(2)
    assert groups.join(follower.member, protocols=(("range", b"more topics"),)) == []
    (again,) = groups.join(leader.member)
    assert [each.metadata for each in again.members] == [b"topics", b"more topics"]


def test_a_new_member_is_given_an_id_first() -> None:
    groups = Groups()
    (given,) = groups.join(needs_member_id=True)
    assert given.error is ErrorCode.member_id_required
    joined = groups.join(given.member, needs_member_id=True)
    groups.pass_ms(3_000)
    assert joined[0].error is NONE
    assert groups.join("made up", needs_member_id=True)[0].error is ErrorCode.unknown_member_id
    (unused,) = groups.join(needs_member_id=True)
    groups.pass_ms(10_000)
    assert groups.join(unused.member)[0].error is ErrorCode.unknown_member_id, "it was not used in time"


def test_an_id_that_is_not_used_holds_a_rebalance_up_until_it_is_given_back() -> None:
    groups = Groups()
    (leader,) = groups.formed(1)
    (given,) = groups.join(needs_member_id=True)
    again = groups.join(leader.member)
    assert again == []
    assert groups.coordinator.leave("g", ((given.member, None),)) == (NONE, (NONE,))
    assert again[0].error is NONE


def test_a_static_member_that_starts_anew_takes_its_place() -> None:
    groups = Groups()
    leader, follower = groups.formed(2, instances=True)
    (back,) = groups.join(instance="i1")
    assert (back.error, back.generation, back.leader) == (NONE, 1, leader.member)
    assert back.member != follower.member
    assert groups.sync(back, "i1")[0].assignment == b"1", "it reads what it read"
    assert groups.heartbeat(leader, "i0") is NONE, "nobody else notices"
    assert groups.heartbeat(follower, "i1") is ErrorCode.fenced_instance_id
    assert groups.commit(follower, "i1") is ErrorCode.fenced_instance_id
    assert groups.join(follower.member, instance="i1")[0].error is ErrorCode.fenced_instance_id
    assert groups.coordinator.leave("g", ((follower.member, "i1"), ("", "i1"), ("", "i9"))) == (
        NONE,
        (ErrorCode.fenced_instance_id, NONE, ErrorCode.unknown_member_id),
    )


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_static_leader_that_starts_anew_does_not_assign_anew(may_skip: bool) -> None:
    groups = Groups()
    _, follower = groups.formed(2, instances=True)
    (back,) = groups.join(instance="i0", may_skip=may_skip)
    assert (back.generation, back.skip_assignment) == (1, may_skip)
    assert (back.leader == back.member) is may_skip
    assert len(back.members) == (2 if may_skip else 0)
    assert groups.sync(back, "i0")[0].assignment == b"0"
    assert groups.heartbeat(follower, "i1") is NONE
    assert groups.join(back.member, instance="i0") == [], "it leads: what it joins again is a rebalance"


def test_a_static_member_with_other_protocols_is_a_rebalance() -> None:
    groups = Groups()
    both = (("range", b""), ("sticky", b""))
    waiting = [groups.join(instance=f"i{n}", protocols=both) for n in range(2)]
    groups.pass_ms(3_000)
    groups.pass_ms(3_000)
    (leader,), (follower,) = waiting
    groups.sync(follower, "i1")
    groups.sync(leader, "i0")
    assert (leader.protocol, groups.state()) == ("range", "Stable")
    back = groups.join(instance="i1", protocols=both[1:])
    assert (back, groups.heartbeat(leader, "i0")) == ([], ErrorCode.rebalance_in_progress)
    (again,) = groups.join(leader.member, instance="i0", protocols=both)
    assert (again.protocol, back[0].error) == ("sticky", NONE)


def test_a_static_member_outlives_a_rebalance_that_it_misses_but_not_its_session() -> None:
    groups = Groups()
    leader, _ = groups.formed(2, instances=True)
    groups.join(leader.member, instance="i0")
    groups.pass_ms(9_000)
    assert (described := groups.coordinator.describe("g")) is not None
    assert len(described.members) == 2
    groups.pass_ms(1_000)
    assert (described := groups.coordinator.describe("g")) is not None
    assert len(described.members) == 1


def test_what_does_not_fit_is_refused() -> None:
    groups = Groups()
    groups.formed(1)
    assert groups.join(protocols=(("sticky", b""),))[0].error is ErrorCode.inconsistent_group_protocol
    assert groups.join(kind="connect")[0].error is ErrorCode.inconsistent_group_protocol
    assert groups.join(protocols=(), group="h")[0].error is ErrorCode.inconsistent_group_protocol
    assert groups.join(group="")[0].error is ErrorCode.invalid_group_id
    assert groups.join(group="g" * 1_001)[0].error is ErrorCode.invalid_group_id
    assert groups.join(session_ms=5_999)[0].error is ErrorCode.invalid_session_timeout
    assert groups.join(session_ms=1_800_001)[0].error is ErrorCode.invalid_session_timeout
    assert groups.join("a", group="h")[0].error is ErrorCode.unknown_member_id
    assert groups.join("a", instance="i")[0].error is ErrorCode.unknown_member_id
    assert [row.group for row in groups.coordinator.list_groups()] == ["g"]


def test_a_consumer_that_assigns_itself_commits_while_there_are_no_members() -> None:
    groups = Groups()
    check = groups.coordinator.check_commit
    assert check("g", "", None, -1) is NONE
    assert check("g", "m", None, 4) is ErrorCode.unknown_member_id
    (member,) = groups.formed(1)
    assert check("g", "", None, -1) is ErrorCode.unknown_member_id
    groups.coordinator.leave("g", ((member.member, None),))
    assert check("g", "", None, -1) is NONE


def test_who_waits_is_told_when_the_lead_is_lost() -> None:
    groups = Groups()
    (member,) = groups.formed(1)
    joining = groups.join()
    groups.coordinator.close()
    lost = ErrorCode.not_coordinator
    assert [each.error for each in joining] == [lost]
    assert (groups.heartbeat(member), groups.commit(member)) == (lost, lost)
    assert (groups.join()[0].error, groups.sync(member)[0].error) == (lost, lost)
    assert groups.coordinator.leave("g", ((member.member, None),))[0] is lost
    groups.pass_ms(100_000)
    assert groups.coordinator.list_groups() == []


def test_groups_members_and_bytes_are_bounded() -> None:
    groups = Groups(
        GroupLimits(most_groups=2, most_members=2, most_metadata_bytes=100, most_bytes=6_000)
    )
    assert groups.join(protocols=(("range", b"x" * 100),))[0].error is ErrorCode.invalid_request
    for _ in range(2):
        groups.join(needs_member_id=True)
    assert groups.join()[0].error is ErrorCode.group_max_size_reached
    assert groups.join(group="h") == []
    assert groups.join(group="i")[0].error is ErrorCode.coordinator_not_available
    groups.pass_ms(10_000)
    assert groups.join(group="i") == [], "the ids of g were not used: it is gone"
    assert groups.join(group="i") == []
    full = Groups(GroupLimits(most_bytes=6_000))
    errors = {each.error for each in [one for _ in range(9) for one in full.join(needs_member_id=True)]}
    assert errors == {ErrorCode.member_id_required, ErrorCode.coordinator_not_available}
    full.pass_ms(10_000)
    assert full.join(needs_member_id=True)[0].error is ErrorCode.member_id_required


def test_an_empty_group_makes_room() -> None:
    groups = Groups(GroupLimits(most_groups=1))
    (member,) = groups.formed(1)
    groups.coordinator.leave("g", ((member.member, None),))
    assert groups.join(group="h") == []
    assert [row.group for row in groups.coordinator.list_groups()] == ["h"]


def test_assignments_are_bounded() -> None:
    groups = Groups(GroupLimits(most_metadata_bytes=100))
    waiting = groups.join()
    groups.pass_ms(3_000)
    assert groups.sync(waiting[0], c_1=b"x" * 101)[0].error is ErrorCode.invalid_request
    assert groups.sync(waiting[0], c_1=b"x" * 100)[0].assignment == b"x" * 100
