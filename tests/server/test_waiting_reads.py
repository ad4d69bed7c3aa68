"""Reads that wait for entries wait at members that hear of some."""

from __future__ import annotations

from quorumlog import LocalCluster, connect
from quorumlog.errors import LeaderNotReady
from tests.waiting import eventually


def test_who_waits_at_a_member_that_follows_no_leader_is_sent_to_another_one() -> None:
    with LocalCluster(members=3) as cluster:
        with connect(cluster.servers) as client:
            client.append(b"x")
        leader = cluster.leader()
        alone, away = [member_id for member_id in cluster.running if member_id != leader]
        driver = cluster.server(alone).drivers[0]
        woken: list[object] = []

        def wait() -> None:
            driver.reads.wait_for(1_000, 600_000, lambda: woken.append(driver.reads.refusal))

        driver._loop.call_soon_threadsafe(driver.enter, None, wait)
        eventually(lambda: len(driver.reads.waiters) == 1, what="a read that waits")
        cluster.kill(away)
        cluster.kill(leader)
        eventually(lambda: bool(woken), what="the end of its wait")
        assert isinstance(woken[0], LeaderNotReady)
        cluster.restart(leader)
        eventually(lambda: driver.reads.refusal is None, what="reads that wait again")
