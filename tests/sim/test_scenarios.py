"""Elections and founding: what random runs come by too rarely, step by step on the same simulator.

The mutants (tests/mutants/) run these as well: each fails where the rule that it is about is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BodyTooLarge, LeaderNotReady, LedgerError, NotLeader
from quorumlog.store.state_files import load_member
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

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
    told = asked_to_confirm(leader)
    scene.until(lambda: told == [None], "confirmation")
    scene.cut([leader, observer], [away])
    told = asked_to_confirm(leader)
    scene.run_for(4 * ELECTION_MS)
    assert told != [None], "leadership was confirmed although no other voter can be asked"
    assert len(told) == 1, "nobody is told that it was not"


def asked_to_confirm(leader: SimMember) -> list[LedgerError | None]:
    """What it says comes into the list: None is a confirmation."""
    told: list[LedgerError | None] = []
    leader.enter(lambda: leader.node.confirm_leadership(told.append))
    return told


def test_a_leader_that_was_replaced_unknown_to_it_does_not_say_where_the_log_ends() -> None:
    """Its connections are closed in between, by a firewall: the others take it for dead at once."""
    scene = Scenario()
    scene.append(3)
    old = scene.await_leader()
    others = scene.followers()
    scene.cut([old], others)
    for member in others:
        scene.cluster.network.reset(old.member_id, member.member_id, closed_by=old.member_id)
    scene.ask_and_wait(scene.await_leader(*others))
    assert old.node.raft.role is Role.LEADER, "it knows by now, which is too late for this test"
    assert old.node.committed_index < others[0].node.store.end.index
    told = asked_to_confirm(old)
    scene.run_for(4 * ELECTION_MS)
    (refusal,) = told
    assert isinstance(refusal, (NotLeader, LeaderNotReady))


def test_a_new_leader_says_where_the_log_ends_once_it_has_committed_in_its_term() -> None:
    """It holds an entry that was acknowledged, and does not know that it was."""
    scene = Scenario(profile=replace(QUIET, sync_ms=40.0))
    scene.append(3)
    old = scene.await_leader()
    heir, away = scene.followers()
    scene.cut([old, heir], [away])
    asked = scene.ask(old)
    scene.until(lambda: asked.is_committed, "acknowledged append", step_ms=0.1)
    old.kill()
    scene.heal()
    scene.until(lambda: scene.leader(heir) is not None, "the heir", step_ms=0.1)
    receipt = asked.outcome
    assert isinstance(receipt, AppendReceipt)
    assert heir.node.committed_index < receipt.last_index, "it knows already: nothing to test"
    told = asked_to_confirm(heir)
    scene.until(lambda: bool(told), "confirmation", step_ms=0.1)
    assert told == [None]
    assert heir.node.committed_index >= receipt.last_index


def _leader_with_an_observer() -> tuple[Scenario, SimMember, SimMember, SimMember]:
    """Of three members: the leader, what came back after one was wiped, and the other voter."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    wiped, voter = scene.followers()
    wiped.wipe()
    wiped.start()
    scene.until(lambda: wiped.node.durable_committed_index >= 3, "observer with the log")
    scene.append()
    return scene, leader, wiped, voter


# ---------------------------------------------------------------- options that differ


def test_a_member_that_takes_less_of_its_clients_follows_a_leader_that_takes_more() -> None:
    """Live, from the files of the others, and at a start, which reads its tail again."""
    scene = Scenario(start=False)
    leader, *strict = scene.members
    for member in strict:
        storage = replace(member.config.storage, max_entry_bytes=100)
        member.config = replace(member.config, storage=storage)
    for member in scene.members:
        member.start()
    scene.until(lambda: scene.leader() is not None, "a leader")
    if scene.leader() is not leader:
        scene.hand_over(scene.await_leader(), leader)
    scene.ask_and_wait(leader, 2000)
    scene.append()
    refused = scene.ask(leader, 9000)
    scene.until(lambda: refused.returned_ms >= 0, "an answer")
    assert isinstance(refused.outcome, BodyTooLarge)
    strict[0].kill()
    scene.ask_and_wait(leader, 2000)
    strict[0].start()
    strict[1].lose_power()
    strict[1].start()
    leader.kill()
    scene.until(lambda: scene.leader(*strict) is not None, "a strict leader")
    refused = scene.ask(scene.await_leader(*strict), 2000)
    scene.until(lambda: refused.returned_ms >= 0, "an answer")
    assert isinstance(refused.outcome, BodyTooLarge)
    scene.make_whole()


def test_a_member_that_obeys_no_cut_does_not_commit_with_members_that_forget() -> None:
    """Two in `async` mode lose what they had acknowledged, and go on with other entries in its place.
    The third, in `sync` mode, would hold the first ones as committed for ever."""
    for seed in range(1, 7):  # what is left after a power loss is luck
        scene = Scenario(flush="async", profile=FORGETFUL, seed=seed)
        scene.append(3)
        own, *others = scene.members
        restart_with_flush(own, "sync")
        for member in others:
            restart_with_flush(member, "async")  # which syncs what it has so far
        scene.await_leader()
        scene.run_for(4 * ELECTION_MS)
        scene.ask_and_wait(scene.await_leader())
        scene.run_for(4 * ELECTION_MS)
        scene.cut([own], others)
        for member in others:
            member.lose_power()
        for member in others:
            member.start()
        heir = scene.await_leader(*others)
        for _ in range(3):
            scene.ask_and_wait(heir)
        scene.heal()
        scene.run_for(20 * ELECTION_MS)
        index = own.node.committed_index
        assert own.node.store.id_at(index) == heir.node.store.id_at(index), "other entries committed"
        restart_with_flush(own, "async")
        scene.make_whole()


FORGETFUL = replace(
    QUIET,
    storage=replace(QUIET.storage, flush_interval_ms=1_000_000, durable_sync_interval_ms=1_000_000),
)


def restart_with_flush(member: SimMember, flush: str) -> None:
    member.stop()
    member.config = replace(member.config, storage=replace(member.config.storage, flush=flush))
    member.start()


def test_a_member_in_memory_goes_with_members_that_sync() -> None:
    """What it forgets it forgets with its directory id, so it obeys no cut of these either."""
    scene = Scenario(start=False, checked=False)  # the checkers look for disks
    first, *others = scene.members
    first.config = replace(first.config, store="memory")
    for member in scene.members:
        member.start()
    scene.append(3)
    first.kill()
    first.start()
    scene.append(3)
    scene.until(lambda: first.node.raft.role is Role.OBSERVER, "an observer")
    assert all(member.node.committed_index >= 6 for member in others)


# ---------------------------------------------------------------- forming


def test_a_majority_of_empty_members_founds_nothing_over_living_data() -> None:
    scene = Scenario()
    scene.append(3)
    living, *wiped = scene.members
    living.kill()
    for member in wiped:
        member.wipe()
        member.start()
    scene.run_for(40 * ELECTION_MS)
    roles = [member.node.raft.role for member in wiped]
    assert roles == [Role.UNFORMED, Role.UNFORMED], "founded without the member that has the data"
    living.start()
    scene.run_for(40 * ELECTION_MS)
    assert [member.node.raft.role for member in wiped] == [Role.OBSERVER, Role.OBSERVER]
    assert living.node.store.end.index >= 3


def test_the_first_on_the_list_founds_nothing_when_it_comes_back_wiped() -> None:
    """It draws the id, and may know of all before anybody has told it anything."""
    for seed in range(1, 6):
        scene = Scenario(seed=seed)
        scene.append(3)
        first = scene.members[0]
        for member in scene.members:
            member.kill()
        first.wipe()
        for member in scene.members:
            member.start()
        scene.until(lambda first=first: first.node.raft.role is Role.OBSERVER, "observer")
        scene.make_whole()


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
    third.wipe()
    scene.cut([first], [second])
    scene.heal(second, third)
    second.start()
    third.start()
    scene.run_for(1_000)
    scene.heal()
    scene.run_for(1_000)
    scene.make_whole()


def test_a_member_that_dies_at_any_step_of_forming_is_one_of_a_group_with_one_id() -> None:
    steps = 0
    for scene, _ in _deaths_while_forming():
        steps += 1
        scene.make_whole()
        formations = [member.node.directory.formation for member in scene.members]
        assert all(formation.founding and formation.cluster_id for formation in formations)
        assert len({(formation.founding, formation.cluster_id) for formation in formations}) == 1
        assert all(member.directories == 1 for member in scene.members)
    assert steps > 10, "the group has formed before anybody could die"


def test_a_list_that_was_given_up_leaves_no_id_to_the_next_one() -> None:
    """A member is wiped at each step of forming: whoever forms then, forms with another directory."""
    replaced = 0
    for scene, dead in _deaths_while_forming():
        record = load_member(dead.disk, dead.path)
        if record is None or record.formation.founding:
            continue  # a group that nobody else may know of yet
        others = [member for member in scene.members if member is not dead]
        before = {member.node.directory.formation.pending_id for member in others} - {""}
        dead.wipe()
        dead.start()
        scene.make_whole()
        formation = others[0].node.directory.formation
        if dead.replica in formation.founding:
            replaced += bool(before)
            assert formation.cluster_id not in before
    assert replaced > 1, "nothing was ever given up"


def _deaths_while_forming() -> Iterator[tuple[Scenario, SimMember]]:
    """Each of three members, at each third effect on its disk or the network while the group forms."""
    for number in range(3):
        effect = 0
        while True:
            effect += 3
            scene = Scenario(start=False, seed=effect)
            for member in scene.members:
                member.start()
            dying = scene.members[number]
            how = "kill" if effect % 2 else "power loss"
            scene.cluster.faults.processes.crash_at_effect(dying, effect, how)
            for _ in range(5_000):
                if not dying.is_up or dying.node.raft.role is not Role.UNFORMED:
                    break
                scene.run_for(0.02)
            if dying.is_up:
                break  # it has formed without dying
            yield scene, dying
