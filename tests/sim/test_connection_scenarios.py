"""The four connections of a pair come up one by one, and at one end before they do at the other."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from quorumlog.testing.member import SimMember
from quorumlog.testing.network import GREETING_MS
from tests.sim.scenario import QUIET, Scenario

ONE_BY_ONE = replace(QUIET, connects_one_by_one=True)
SOON_MS = 50.0
"""A few round trips and syncs, and far from the time after which a leader takes silence for loss."""


def are_connected(one: SimMember, other: SimMember) -> bool:
    ends = one.ends[other.member_id], other.ends[one.member_id]
    return all(end.connections.connected_to for end in ends)


def test_a_restarted_follower_is_fed_as_soon_as_both_ends_are_connected() -> None:
    assert QUIET.consensus.push_resend_ms > 2 * GREETING_MS[-1] + 2 * SOON_MS
    scene = Scenario(profile=ONE_BY_ONE)
    scene.append()
    leader, follower = scene.await_leader(), scene.followers()[0]
    for _ in range(20):
        follower.kill()
        scene.ask_and_wait(leader)
        follower.start()
        scene.until(lambda: are_connected(leader, follower), "connection", step_ms=0.1)
        end_index = leader.node.store.end.index
        caught_up = lambda end=end_index: follower.node.committed_index >= end  # noqa: E731
        scene.until(caught_up, "follower that has caught up", within_ms=SOON_MS)
    assert scene.leader() is leader
    assert scene.cluster.trace.counts["connections: a frame came early"] > 0, "nothing was tested"
    scene.make_whole()


def test_one_connection_that_is_reset_delays_no_append_for_long() -> None:
    """The other three stand, and what comes on them meanwhile is not lost."""
    scene = Scenario(profile=ONE_BY_ONE)
    scene.append()
    leader = scene.await_leader()
    follower, away = scene.followers()
    away.kill()
    scene.run_for(100)
    pairs = [(leader, follower), (follower, leader)]
    for (dialler, acceptor), role in product(3 * pairs, ("control", "data")):
        scene.cluster.network.reset_one(dialler.member_id, acceptor.member_id, role)
        asked = scene.ask(leader)
        committed = lambda asked=asked: asked.is_committed  # noqa: E731
        scene.until(committed, "acknowledged append", within_ms=2 * GREETING_MS[-1] + 2 * SOON_MS)
    assert scene.leader() is leader
    away.start()
    scene.make_whole()
