"""A restored cluster lives as any other: it elects, loses leaders and power, and keeps its promises."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from quorumlog.backups import Restored, restore
from quorumlog.entry import AppendReceipt
from quorumlog.log_state.control_entries import MembershipEntry, TimeMark
from quorumlog.log_state.log_state import LogState
from quorumlog.store.disk import Disk
from quorumlog.store.memory_disk import MemoryDisk
from tests.backups.store_client import StoreClient, taken
from tests.sim.scenario import Scenario


class DiskOfMachines:
    """One tree of names over the disks of several machines: `/ID/...` lies on that of member ID."""

    def __init__(self, here: Disk, others: dict[str, Disk]) -> None:
        self._here = here
        self._others = others

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(path: str, *arguments: Any, **options: Any) -> Any:
            if (name, path) == ("sync_directory", "/"):
                for disk in self._others.values():
                    disk.sync_directory(path)
                return None
            disk = self._others.get(path.split("/")[1] if path.startswith("/") else "", self._here)
            return getattr(disk, name)(path, *arguments, **options)

        return call


def backed_up(scene: Scenario) -> Disk:
    """Of a member that works, and that is not the leader."""
    disk, member = MemoryDisk(), scene.followers()[0]
    client = StoreClient({member.member_id: member.node.store})
    client.group = "default"
    client.config = scene.cluster.profile.storage
    taken(client, "b", disk)
    return disk


def restored(old: Scenario, size: int, **options: Any) -> tuple[Scenario, Restored]:
    """What was acknowledged before is promised by the new cluster, too."""
    disk = backed_up(old)
    scene = Scenario(size=size, start=False, seed=7)
    scene.run_for(old.cluster.now_ms + 1)
    scene.cluster.operations.appends += old.cluster.operations.appends
    for member in scene.members:
        member.disk.make_directory("/")
    random = Random(size)
    machines: Any = DiskOfMachines(disk, {member.member_id: member.disk for member in scene.members})
    done = restore(
        "b",
        ",".join(map(str_of, scene.members)),
        {member.member_id: member.path for member in scene.members},
        disk=machines,
        draw_id=lambda: f"{random.getrandbits(128):032x}",
        **options,
    )
    return scene, done


def str_of(member: Any) -> str:
    return f"{member.member_id}={member.config.own_address}"


def a_log() -> Scenario:
    scene = Scenario()
    leader = scene.await_leader()
    leader.enter_node("propose_control", TimeMark(1000))
    for _ in range(3):
        scene.append()
    leader.kill()
    scene.await_leader()
    scene.append()
    leader.start()
    scene.make_whole()
    return scene


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_restored_cluster_elects_and_keeps_its_promises(size: int) -> None:
    scene, done = restored(a_log(), size)
    for member in scene.members:
        member.start()
    leader = scene.await_leader()
    scene.append()
    for member in scene.members:
        assert member.node.directory.formation.cluster_id == done.cluster_id
    if size > 1:
        leader.kill()
        scene.await_leader(*(member for member in scene.members if member.is_up))
        scene.append()
        leader.start()
    scene.make_whole()
    for member in scene.members:
        states = member.node.log_state.states
        assert states is not None and isinstance(states.appended, LogState)
        membership = states.appended.membership
        assert isinstance(membership, MembershipEntry)
        assert [each.member_id for each in membership.new] == sorted(m.member_id for m in scene.members)
        assert states.appended.membership_index == done.membership_index
        assert states.appended.time_ms == 1000


def test_without_power_right_after_the_restore_and_with_other_leaders() -> None:
    for seed in range(5):
        old = a_log()
        scene, done = restored(old, 3, last_index=3)
        # What was acknowledged behind the chosen end is no promise of the new cluster.
        scene.cluster.operations.appends[:] = [
            each
            for each in scene.cluster.operations.appends
            if isinstance(each.outcome, AppendReceipt) and each.outcome.last_index <= 3
        ]
        random = Random(seed)
        for member in scene.members:
            member.disk.lose_power(random)
            member.start()
        for _ in range(4):
            leader = scene.await_leader(*(member for member in scene.members if member.is_up))
            scene.append()
            leader.lose_power()
            scene.await_leader(*(member for member in scene.members if member.is_up))
            scene.append()
            leader.start()
        scene.make_whole()
        ids = {member.node.directory.formation.cluster_id for member in scene.members}
        assert ids == {done.cluster_id}
        assert not any(member.node.directory.renewed for member in scene.members)
