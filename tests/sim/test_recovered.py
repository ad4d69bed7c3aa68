"""A cluster that lost its majority goes on with what a survivor held."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from quorumlog.backups import plan_recovery, recover_cluster
from quorumlog.entry import AppendReceipt
from quorumlog.errors import ConfigError
from quorumlog.node.member_changes import MemberOperation
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.operations import Trace
from sim.log.checkers.acknowledged_appends import AcknowledgedAppends
from sim.log.profile import draw_profile
from sim.log.world import LogWorld
from tests.sim.scenario import QUIET, Scenario
from tests.sim.test_installs import SMALL, behind
from tests.sim.test_log_begin import bodies
from tests.sim.test_member_scenarios import make


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_recovered_cluster_grows_again_and_keeps_what_the_survivor_held(seed: int) -> None:
    old = Scenario(seed=seed)
    old.append(5)
    survivor, returning = old.followers()
    for member in old.members:
        member.lose_power()
    scene = Scenario(start=False, seed=seed + 10)
    scene.run_for(old.cluster.now_ms + 1)
    scene.cluster.operations.appends += old.cluster.operations.appends
    first = next(each for each in scene.members if each.member_id == survivor.member_id)
    stale = next(each for each in scene.members if each.member_id == returning.member_id)
    (other,) = [each for each in scene.members if each not in (first, stale)]
    first.disk.restore(survivor.disk.snapshot())
    random = Random(seed)
    recovered = recover_cluster(
        plan_recovery([first.path], disk=first.disk),
        disk=first.disk,
        draw_id=lambda: f"{random.getrandbits(128):032x}",
    )
    first.disk.lose_power(random)
    first.start()
    assert scene.await_leader(first) is first
    assert first.node.directory.formation.cluster_id == recovered.cluster_id
    scene.ask_and_wait(first)
    other.start()
    make(scene, MemberOperation.ADD, other.member_id, "10.0.0.1:1")
    make(scene, MemberOperation.PROMOTE, other.member_id)
    scene.ask_and_wait(scene.await_leader(first, other))
    # The other one of the old cluster is fed again only with an empty disk.
    stale.wipe()
    stale.start()
    make(scene, MemberOperation.ADD, stale.member_id, "10.0.0.1:2")
    make(scene, MemberOperation.PROMOTE, stale.member_id)
    scene.append()
    first.kill()
    scene.ask_and_wait(scene.await_leader(other, stale))
    first.start()
    scene.make_whole()


def struck(seed: int) -> SimCluster:
    """A cluster after some seconds of whatever strikes clusters; all of it has lost power."""
    random = Random(seed)
    profile = draw_profile(random, 3)
    while profile.is_async or profile.changes_members:
        profile = draw_profile(random, 3)
    cluster = LogWorld(random, profile, Trace()).cluster
    for member in cluster.members:
        member.start()
    for client in cluster.clients:
        client.work()
    cluster.faults.begin()
    cluster.run_for(3_000)
    cluster.is_faulty = False
    cluster.faults.stop()
    for member in cluster.members:
        member.lose_power()
    return cluster


def recovered_after(seed: int) -> None:
    old = struck(seed)
    sound = [m for m in old.members if not (m.is_lost or m.is_damaged)]
    survivor = Random(seed).choice(sound)
    storage = old.profile.storage
    scene = Scenario(start=False, seed=seed, profile=replace(QUIET, storage=storage))
    # What the old cluster held was appended by nobody here.
    checkers = scene.cluster.checkers
    checkers[:] = [each for each in checkers if not isinstance(each, AcknowledgedAppends)]
    scene.run_for(old.now_ms + 1)
    first = scene.cluster.member(survivor.member_id)
    first.disk.restore(survivor.disk.snapshot())
    try:
        plan = plan_recovery([first.path], disk=first.disk)
    except ConfigError as nothing:
        assert "never belonged to a group" in str(nothing)
        return
    assert plan.is_needed
    recover_cluster(plan, disk=first.disk)
    first.disk.lose_power(Random(seed))
    first.start()
    assert scene.await_leader(first) is first
    held = bodies(first, first.node.store.begin.index + 1)
    first_index = first.node.store.begin.index + 1
    for append in old.operations.appends:
        receipt = append.outcome
        if isinstance(receipt, AppendReceipt) and receipt.last_index <= plan.committed_index:
            for index, body in enumerate(append.bodies, receipt.first_index):
                assert index < first_index or held[index - first_index] == body, (seed, index)
    scene.ask_and_wait(first)
    for other in scene.members:
        if other is not first:
            other.start()
            make(scene, MemberOperation.ADD, other.member_id, f"10.0.0.1:{other.member_id[1:]}")
            make(scene, MemberOperation.PROMOTE, other.member_id)
    scene.append()
    first.kill()
    scene.ask_and_wait(scene.await_leader(*[each for each in scene.members if each is not first]))
    first.start()
    scene.make_whole()


@pytest.mark.parametrize("seed", range(1, 4))
def test_after_whatever_has_struck_a_survivor_keeps_what_is_known_to_be_committed(seed: int) -> None:
    recovered_after(seed)


def test_a_survivor_that_was_being_installed_leads_although_it_owes_entries() -> None:
    """Nobody can give it what the old cluster had committed."""
    one_by_one = replace(SMALL.consensus, push_limit_bytes=600, push_window_bytes=600)
    old, leader, survivor = behind(profile=replace(SMALL, consensus=one_by_one))
    survivor.start()
    old.until(
        lambda: survivor.is_up and survivor.node.store.begin == leader.node.store.begin,
        "the start",
        step_ms=0.02,
    )
    assert survivor.node.store.end.index < leader.node.committed_index
    for member in old.members:
        member.lose_power()
    scene = Scenario(start=False, profile=SMALL, checked=False)
    scene.run_for(old.cluster.now_ms + 1)
    first = next(each for each in scene.members if each.member_id == survivor.member_id)
    first.disk.restore(survivor.disk.snapshot())
    recover_cluster(plan_recovery([first.path], disk=first.disk), disk=first.disk)
    first.start()
    assert scene.await_leader(first) is first
    scene.ask_and_wait(first)
