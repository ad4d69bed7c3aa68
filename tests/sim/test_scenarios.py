"""Elections and founding: what random lives come by too rarely, step by step on the same simulator.

The mutants (tests/mutants/) run these as well: each fails where the rule that it is about is broken.
"""

from __future__ import annotations

from quorumlog.consensus.ready import Ready, Role
from quorumlog.sim.checkers.checker import Checker
from quorumlog.sim.member import SimMember
from tests.sim.scenario import ELECTION_MS, Scenario

# ---------------------------------------------------------------- elections


def test_after_a_restart_of_all_the_log_commits_without_a_new_append() -> None:
    scene = Scenario()
    scene.append(3)
    for member in scene.members:
        member.lose_power()
    for member in scene.members:
        member.start()
    scene.make_whole()


def test_a_member_that_hears_nobody_and_is_heard_deposes_no_leader() -> None:
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    deaf = scene.followers()[0]
    others = [member for member in scene.members if member is not deaf]
    term = leader.node.raft.term
    scene.cut([leader], [deaf], both_ways=False)
    scene.run_for(20 * ELECTION_MS)
    assert all(scene.leader(member) in (None, leader) for member in scene.members)
    assert [member.node.raft.term for member in others] == [term, term], "deposed by a deaf member"
    scene.make_whole()


def test_a_higher_term_with_a_shorter_log_does_not_block_a_lower_one_with_a_longer_log() -> None:
    """Each refuses the other, one for the term and one for the log, until the term is adopted."""
    scene = Scenario()
    scene.append(3)
    longer = scene.await_leader()
    others = scene.followers()
    term = longer.node.raft.term
    scene.cut([longer], others)
    scene.ask(longer)
    raised: list[SimMember] = []
    while not raised:
        scene.run_for(0.02)
        raised = [member for member in others if member.node.raft.term > term]
    for member in others:
        if member is not raised[0]:
            member.kill()
    raised[0].kill()
    raised[0].start()  # it asks for pre-votes only now, and those change nothing at anybody
    scene.run_for(4 * ELECTION_MS)
    assert raised[0].node.raft.role is Role.CANDIDATE
    assert raised[0].node.store.end.index < longer.node.store.end.index
    scene.heal()
    scene.until(lambda: scene.leader(*raised, longer) is not None, "leader of the two")
    scene.make_whole()


def test_a_leader_that_only_an_observer_answers_steps_down() -> None:
    scene, leader, observer, away = _leader_with_an_observer()
    scene.cut([leader, observer], [away])
    scene.run_for(4 * ELECTION_MS)
    assert leader.node.raft.role is not Role.LEADER, "leads although only an observer answers"
    assert observer.node.raft.role is Role.OBSERVER


def test_a_read_waits_for_the_voters_whatever_an_observer_answers() -> None:
    scene, leader, observer, away = _leader_with_an_observer()
    grants = Grants(scene.cluster)
    scene.watch(grants)

    def ask() -> None:
        leader.node.raft.request_read()

    leader.enter(ask)
    scene.until(lambda: grants.seen == 1, "grant of a read")
    scene.cut([leader, observer], [away])
    leader.enter(ask)
    scene.run_for(4 * ELECTION_MS)
    assert grants.seen == 1, "a read was granted although no other voter can be asked"


class Grants(Checker):
    """The reads that were granted to anybody."""

    seen = 0

    def ready(self, member: SimMember, ready: Ready) -> None:
        self.seen += len(ready.read_grants)


def _leader_with_an_observer() -> tuple[Scenario, SimMember, SimMember, SimMember]:
    """Of three members: the leader, what came back after one was wiped, and the other voter."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    wiped, voter = scene.followers()
    scene.wipe(wiped)
    wiped.start()
    scene.until(lambda: wiped.node.applied_index >= 3, "observer with the log")
    scene.append()
    return scene, leader, wiped, voter


# ---------------------------------------------------------------- forming


def test_a_majority_of_empty_members_founds_nothing_over_living_data() -> None:
    scene = Scenario()
    scene.append(3)
    living, *wiped = scene.members
    living.kill()
    for member in wiped:
        scene.wipe(member)
        member.start()
    scene.run_for(40 * ELECTION_MS)
    roles = [member.node.raft.role for member in wiped]
    assert roles == [Role.UNFORMED, Role.UNFORMED], "founded without the member that has the data"
    living.start()
    scene.run_for(40 * ELECTION_MS)
    assert [member.node.raft.role for member in wiped] == [Role.OBSERVER, Role.OBSERVER]
    assert living.node.store.end.index >= 3


def test_a_group_is_founded_once_although_a_member_was_wiped_while_it_formed() -> None:
    scene = Scenario(start=False)
    first, second, third = scene.members
    scene.cut([second], [third])
    first.start()
    third.start()
    scene.run_for(100)
    second.start()
    for _ in range(20_000):  # `first` knows all three for a while, `second` only two
        if first.node.raft.role is not Role.UNFORMED:
            break
        scene.run_for(0.05)
    second.kill()
    scene.wipe(third)
    scene.cut([first], [second])
    scene.heal(second, third)
    second.start()
    third.start()
    scene.run_for(1_000)
    scene.heal()
    scene.run_for(1_000)
    scene.make_whole()
