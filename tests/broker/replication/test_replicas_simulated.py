"""Masters, slaves, operators and lists under everything that goes wrong: nothing acknowledged is lost,
nothing that a consumer saw vanishes, and those that are there go on."""

from __future__ import annotations

import os

from quorumlog.broker.offline_store import OfflineStore
from tests.broker.replication.replica_world import ROOT, Broker, GivenUp, World
from tests.broker.store.store_making import numbers_in_queue

SEEDS = int(os.environ.get("QUORUMLOG_HA_SEEDS", "6"))
"""Of each size; `make broker-replicas`: many more."""
STEPS = 600


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
        world.note()
    elif what < 0.5 and world.masters:
        master = random.choice(world.masters)
        world.guarded(master.name, lambda: world.put(master))
    else:
        world.connect(name)
        world.guarded(name, lambda: world.pump(name, random.choice((7, 300, 100_000))))


def step(world: World) -> None:
    random = world.random
    name = random.choice([*world.brokers])
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
    elif what < 0.020 or (name in world.hidden and what < 0.06):
        world.hidden ^= {name}
    elif what < 0.030:
        world.cut(name)
        world.parted ^= {frozenset((name, random.choice([*world.brokers])))}
    elif what < 0.034:
        world.parted.clear()
    elif what < 0.044:
        if random.random() < 0.3:
            victim = world.brokers[random.choice([*world.brokers])]
            victim.disk.crash_countdown = random.randrange(1, 30)
        world.switch(name, is_gone_at=random.choice((-1, -1, random.randrange(12))))
    elif what < 0.052:
        a_master_falls(world)
    elif what < 0.055:
        world.tick()
    elif what < 0.075:
        if world.masters:
            world.change(random.choice(world.masters).name)
    elif what < 0.076:
        wipe(world, broker)
    elif what < 0.077:
        if world.given_up < 1 and random.random() < 0.3:
            world.force(name)
    elif broker.replica is None:
        if random.random() < 0.2:
            world.guarded(name, broker.start)
    elif what < 0.17 and world.masters:
        master = random.choice(world.masters)
        world.guarded(master.name, lambda: world.put(master))
    elif what < 0.40:
        world.guarded(name, broker.work)
    elif what < 0.45:
        world.note()
    else:
        world.connect(name)
        world.guarded(name, lambda: world.pump(name, random.choice((7, 300, 100_000))))


def wipe(world: World, broker: Broker) -> None:
    if world.wipes < world.most_wipes:
        world.wipes += 1
        world.story.append(f"{broker.name} loses its directory")
        others = [name for name in world.brokers if name != broker.name]
        broker.empty(world.random.choice(others))


def run(seed: int, brokers: int = 3) -> World:
    try:
        return whole_run(seed, brokers)
    except Exception as error:
        error.add_note(f"seed {seed}, {brokers} brokers")
        raise


def whole_run(seed: int, brokers: int) -> World:
    world = World(seed, brokers)
    another_is_at_work = False

    def meanwhile() -> None:
        """Between two steps of an operator, who may be slow; another one may be at work."""
        nonlocal another_is_at_work
        random = world.random
        for _ in range(random.choice((0, 0, 1, 4))):
            quiet_step(world, random.choice([*world.brokers]))
        if random.random() < 0.05:
            world.tick()
        if not another_is_at_work and random.random() < 0.05:
            another_is_at_work = True
            try:
                if world.masters and random.random() < 0.3:
                    world.change(random.choice(world.masters).name)
                else:
                    world.switch(random.choice([*world.brokers]))
            finally:
                another_is_at_work = False

    world.meanwhile = meanwhile
    try:
        for _ in range(STEPS):
            step(world)
            world.check()
        ends_well(world)
    except GivenUp as given_up:
        world.story.append(str(given_up))
    return world


def ends_well(world: World) -> None:
    master = world.settle()
    held = world.numbers_of(master.name)
    missing = set(world.acknowledged) - held
    assert not missing, f"acknowledged and lost: {sorted(missing)}"
    assert len(numbers_in_queue(master.living.store)) == len(held)
    goes_on_with_the_least(world, master)
    logs = set()
    for broker in world.brokers.values():
        if broker.replica is None:
            broker.start()
    master = world.settle()
    for broker in world.brokers.values():
        store = broker.living.store
        logs.add(store.commit_log.read_bytes(0, store.commit_log.max_offset))
        store.close()
        broker.disk.kill()
        with OfflineStore(ROOT, broker.disk) as stopped:
            assert stopped.verify()["problems"] == []
    assert len(logs) == 1, "the logs differ"


def goes_on_with_the_least(world: World, master: Broker) -> None:
    """max(k, N - k + 1) of the list are there, and a command is given."""
    (listed,) = master.living._acks.lists
    if listed.copies > len(listed.members):
        return  # the group is not formed yet
    brokers = world.brokers
    there = [p.id for p in listed.members if brokers[p.id].living.directory_id == p.directory_id]
    world.random.shuffle(there)
    least = max(listed.needed, listed.promises)
    if len(there) < least:
        return
    for name in there[least:]:
        world.brokers[name].crash(world.random, power=True)
    assert world.serves(), f"{there[:least]} of {there} with {listed.copies} copies: {world.story[-20:]}"


def test_nothing_acknowledged_is_lost_and_the_living_go_on() -> None:
    worlds = [run(seed, brokers) for brokers in (2, 3, 4, 5) for seed in range(SEEDS)]
    assert sum(len(world.acknowledged) for world in worlds) > 20 * SEEDS
    assert sum(world.switches for world in worlds) > 5 * SEEDS
    assert sum(world.changes for world in worlds) > SEEDS
