"""Faults harm no more members than the group can lose, and what they damage is made good."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nemesis import faults
from nemesis.cluster import Cluster
from nemesis.damage import DAMAGE_KINDS, DURABLE_DAMAGE_KINDS, DamageKind
from nemesis.faults import FAULTS, draw_faults
from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.config import KIB
from quorumlog.store.disk import OsDisk
from quorumlog.store.verification import verify_directory
from tests.waiting import eventually, row_of, wait_until_identical


@pytest.fixture(params=[3, 5])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    """Members that are not started: only who they are matters here."""
    return Cluster(tmp_path / "members", request.param, with_small_disk=True)


def test_faults_that_overlap_harm_a_minority_and_each_another_member(cluster: Cluster) -> None:
    members = len(cluster.member_ids)
    kinds = [fault for fault in FAULTS.values() if fault.least_members <= members]
    overlaps = 0
    for seed in range(500):
        drawn = draw_faults(cluster, kinds, "n1", random.Random(seed))
        victims = [fault.victim_id for fault in drawn]
        assert len(set(victims)) == len(victims) <= (members - 1) // 2
        assert all(fault.harms_a_member for fault in drawn) or len(drawn) == 1
        assert all(f.victim_id == cluster.small_disk_id for f in drawn if f.needs_small_disk)
        overlaps += len(drawn) > 1
    assert (overlaps > 0) == (members == 5)


def test_the_same_seed_draws_the_same_faults(cluster: Cluster) -> None:
    kinds = [faults.Kill, faults.Pause, faults.Cut]

    def drawn() -> list[tuple[str, str]]:
        rng = random.Random(4)
        rounds = [draw_faults(cluster, kinds, "n0", rng) for _ in range(20)]
        return [(fault.name, fault.victim_id) for one in rounds for fault in one]

    assert drawn() == drawn()


def test_a_bridge_leaves_one_member_that_reaches_all_and_two_halves_that_reach_only_it(
    cluster: Cluster,
) -> None:
    reached = _reached(cluster, faults.Bridge)
    everybody = set(cluster.member_ids)
    middle = [member for member, others in reached.items() if others == everybody]
    assert len(middle) == 1
    half = len(everybody) // 2
    assert all(len(others) == half + 1 for member, others in reached.items() if member not in middle)


@pytest.mark.parametrize("cluster", [5], indirect=True)
def test_in_a_ring_every_member_reaches_another_majority(cluster: Cluster) -> None:
    reached = _reached(cluster, faults.Ring)
    assert all(len(others) == 3 for others in reached.values())
    assert len(set(map(frozenset, reached.values()))) == 5


def _reached(cluster: Cluster, kind: type[faults.NetworkFault]) -> dict[str, set[str]]:
    """By member: whom it reaches both ways, itself included."""
    cut = set(kind(cluster, "n0", random.Random(1)).directions())
    assert cut == {direction[::-1] for direction in cut}
    return {a: {b for b in cluster.member_ids if (a, b) not in cut} for a in cluster.member_ids}


# -------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", DAMAGE_KINDS)
def test_a_member_recovers_by_itself_from_damage_to_what_it_can_make_again(
    damage: DamageKind, tmp_path: Path
) -> None:
    bodies = [b"entry %d" % number for number in range(100)]
    with LocalCluster(members=3, directory=tmp_path) as cluster, connect(cluster.servers) as log:
        log.append_batch(bodies[:50])
        wait_until_identical(log)
        leader_id = cluster.leader()
        victim = next(member_id for member_id in cluster.running if member_id != leader_id)
        cluster.kill(victim)
        log.append_batch(bodies[50:])
        damage(cluster.data_dir(victim), random.Random(1))
        cluster.restart(victim)
        # A tail has no end: the bodies come first, so that nothing is asked for behind the last one.
        found = log.tail(0, from_member=victim)
        assert [entry.body for _, entry in zip(bodies, found, strict=False)] == bodies
        data_dir = str(cluster.data_dir(victim))
    verification = verify_directory(OsDisk(), data_dir)
    assert verification.ok, verification


@pytest.mark.parametrize("damage", DURABLE_DAMAGE_KINDS)
def test_damage_below_the_durable_point_is_damage_and_repaired_by_the_others(
    damage: DamageKind, tmp_path: Path
) -> None:
    storage = StoreConfig(segment_bytes=64 * KIB, scrub_start_delay_ms=0)
    with (
        LocalCluster(members=3, directory=tmp_path, storage=storage) as cluster,
        connect(cluster.servers) as log,
    ):
        log.append_batch([b"entry %d" % number + b"." * 1000 for number in range(300)])
        wait_until_identical(log)
        victim = cluster.leader()
        cluster.kill(victim)
        data_dir = cluster.data_dir(victim)
        damage(data_dir, random.Random(1))
        assert not verify_directory(OsDisk(), str(data_dir)).ok
        cluster.restart(victim)

        def is_repaired() -> bool:
            row = row_of(log, victim)
            return bool(row.scrub_passes and not row.damaged_entries)

        eventually(is_repaired, what="a scrub that leaves nothing damaged")
    verification = verify_directory(OsDisk(), str(data_dir))
    assert verification.ok, verification


def test_a_damaged_member_is_not_whole_before_a_scrub_of_it_has_ended(tmp_path: Path) -> None:
    with Cluster(tmp_path / "members", 3, with_small_disk=False) as cluster:
        leader_id = cluster.wait_until_whole()
        victim = next(member for member in cluster.member_ids if member != leader_id)
        cluster.kill(victim)
        cluster.damage(victim, DURABLE_DAMAGE_KINDS[0], random.Random(1))
        cluster.start(victim)
        cluster.wait_until_whole()
        row = row_of(cluster.client, victim)
        assert (row.scrub_passes, row.damaged_entries) == (1, 0)


def test_a_wiped_member_has_nothing_left_and_may_have_another_file_system(cluster: Cluster) -> None:
    path = cluster.members["n1"].data_dir
    (path / "data").mkdir(parents=True)
    (path / "data" / "0").write_bytes(b"segment")
    (path / "member").write_bytes(b"who")
    cluster._down["n1"] = (0, False)
    cluster.wipe("n1")
    assert list(path.iterdir()) == []
    with pytest.raises(AssertionError, match="n0 runs"):
        cluster.wipe("n0")
