"""Masters, slaves and switches under crashes, cuts and lost power: nothing that was acknowledged is
lost, and nothing that a consumer saw vanishes."""

from __future__ import annotations

import os

import pytest

from quorumlog.broker.offline_store import OfflineStore
from tests.broker.replication.replica_world import ROOT, World
from tests.broker.store.store_making import numbers_in_queue

SEEDS = int(os.environ.get("QUORUMLOG_HA_SEEDS", "8"))
"""`make broker-replicas`: many more."""
STEPS = 1000


def step(world: World) -> None:
    random = world.random
    name = random.choice(list(world.brokers))
    broker = world.brokers[name]
    what = random.random()
    if what < 0.005:
        if broker.replica is not None:
            power = random.random() < 0.5
            world.story.append(f"{name} {'loses power' if power else 'is killed'}")
            broker.crash(random, power=power)
    elif what < 0.010:
        broker.disk.crash_countdown = random.randrange(1, 60)
    elif what < 0.015 or (name in world.away and what < 0.06):
        world.away ^= {name}
        world.cut(name)
    elif what < 0.025:
        world.cut(name)
    elif what < 0.035:
        if random.random() < 0.3:
            victim = world.brokers[random.choice(list(world.brokers))]
            victim.disk.crash_countdown = random.randrange(1, 30)
        world.switch(name)
    elif broker.replica is None:
        if random.random() < 0.2:
            world.guarded(name, broker.start)
    elif what < 0.15 and world.masters:
        master = random.choice(world.masters)
        world.guarded(master.name, lambda: world.put(master))
    elif what < 0.40:
        world.guarded(name, broker.work)
    elif what < 0.45:
        world.join()
    else:
        world.connect(name)
        world.guarded(name, lambda: world.pump(name, random.choice((7, 300, 100_000))))


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        step(world)
        world.check()
    for _ in range(20):  # the end of it is quiet enough for a few more to be acknowledged
        for name in world.brokers:
            world.connect(name)
            world.guarded(name, lambda name=name: world.pump(name, 100_000))  # type: ignore[misc]
            if world.brokers[name].replica is not None:
                world.guarded(name, world.brokers[name].work)
    master = world.settle()
    held = numbers_in_queue(master.living.store)
    missing = set(world.acknowledged) - set(held)
    assert not missing, f"acknowledged and lost: {sorted(missing)}"
    assert len(held) == len(set(held))
    logs = set()
    for broker in world.brokers.values():
        assert numbers_in_queue(broker.living.store) == held, broker.name
        store = broker.living.store
        logs.add(store.commit_log.read_bytes(0, store.commit_log.max_offset))
        store.close()
        broker.disk.kill()
        with OfflineStore(ROOT, broker.disk) as stopped:
            assert stopped.verify()["problems"] == []
    assert len(logs) == 1, "the logs differ"
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_whatever_crashes(seed: int) -> None:
    run(seed)


def test_the_runs_above_do_what_they_are_there_for() -> None:
    worlds = [run(seed) for seed in range(SEEDS, SEEDS + 4)]
    assert sum(len(world.acknowledged) for world in worlds) > 20
    assert sum(world.switches for world in worlds) > 3
