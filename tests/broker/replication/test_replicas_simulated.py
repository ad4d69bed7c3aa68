"""Masters, slaves and switches under crashes, cuts and lost power: nothing that was acknowledged is
lost, and nothing that a consumer saw vanishes."""

from __future__ import annotations

import os

from quorumlog.broker.offline_store import OfflineStore
from tests.broker.replication.replica_world import ROOT, World
from tests.broker.store.store_making import numbers_in_queue

SEEDS = int(os.environ.get("QUORUMLOG_HA_SEEDS", "4"))
"""`make broker-replicas`: many more."""
STEPS = 1000


def a_master_falls(world: World) -> None:
    """With messages that nobody has yet, or few; perhaps it comes back for a moment. Then somebody
    switches."""
    random = world.random
    if not world.masters:
        return
    master = random.choice(world.masters)
    others = [name for name in world.brokers if name != master.name]
    for _ in range(random.randrange(1, 9)):
        if master.replica is None:
            break
        if random.random() < 0.6:
            world.guarded(master.name, lambda: world.put(master))
        else:
            quiet_step(world, random.choice(others))
    if random.random() < 0.4:
        name = random.choice(others)
        world.away ^= {name}
        world.cut(name)
    for _ in range(random.choice((0, 0, 2, 6))):
        quiet_step(world, random.choice([*world.brokers]))
    if master.replica is not None:
        if random.random() < 0.5:
            world.away.add(master.name)
            world.cut(master.name)
        else:
            master.crash(random, power=random.random() < 0.5)
            if random.random() < 0.3:  # it shows itself once more
                world.guarded(master.name, master.start)
                world.check()
                if master.replica is not None:
                    master.crash(random, power=False)
    random.shuffle(others)
    for name in others:
        if not world.switch(name, is_gone_at=random.choice((-1, -1, random.randrange(12)))):
            break


def quiet_step(world: World, name: str) -> None:
    """Of this broker: nobody fails and nobody switches."""
    random, broker = world.random, world.brokers[name]
    what = random.random()
    if broker.replica is None:
        return
    if what < 0.25:
        world.guarded(name, broker.work)
    elif what < 0.3:
        world.join()
    elif what < 0.5 and world.masters:
        master = random.choice(world.masters)
        world.guarded(master.name, lambda: world.put(master))
    else:
        world.connect(name)
        world.guarded(name, lambda: world.pump(name, random.choice((7, 300, 100_000))))


def meanwhile(world: World) -> None:
    """Between two steps of an operator, who may be slow."""
    random = world.random
    for _ in range(random.choice((0, 0, 1, 4))):
        quiet_step(world, random.choice([*world.brokers]))
    if random.random() < 0.05:
        world.tick()


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
        world.switch(name, is_gone_at=random.choice((-1, -1, random.randrange(12))))
    elif what < 0.045:
        a_master_falls(world)
    elif what < 0.048:
        world.tick()
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
    try:
        return whole_run(seed)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise


def whole_run(seed: int) -> World:
    world = World(seed)
    world.meanwhile = lambda: meanwhile(world)
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


def test_nothing_acknowledged_is_lost_whatever_crashes() -> None:
    worlds = [run(seed) for seed in range(SEEDS)]
    assert sum(len(world.acknowledged) for world in worlds) > 20
    assert sum(world.switches for world in worlds) > 3
