"""Whatever else goes wrong: a switch that is done loses nothing that was acknowledged, or says what."""

from __future__ import annotations

import os
from functools import partial

from tests.broker.replication.harsh_world import HarshWorld, Undecided
from tests.broker.replication.test_replicas_simulated import meanwhile, step

SEEDS = int(os.environ.get("QUORUMLOG_HA_SEEDS", "6"))
"""Of each size; `make broker-replicas`: many more."""
STEPS = 1000


def harsh_step(world: HarshWorld) -> None:
    random = world.random
    name = random.choice([*world.brokers])
    broker, what = world.brokers[name], random.random()
    is_whole = not world.last_unsafe
    if what < 0.002:
        if is_whole and world.wipes < world.most_wipes:
            world.wipe(name)
    elif what < 0.006:
        world.forget(name)
    elif what < 0.012 or (name in world.hidden and what < 0.05):
        world.hidden ^= {name}
    elif what < 0.020:
        world.part(name, random.choice([*world.brokers]))
    elif what < 0.022:
        world.parted.clear()
        world.hidden.clear()
    elif what < 0.026:
        if is_whole and not world.wipes and random.random() < 0.2:
            world.switch(name, unsafe=True)
    elif what < 0.032:
        if broker.replica is not None:
            broker.crash(random, power=False)
        world.options[name] = random.choice((0, 1, 2, 3))
        world.guarded(name, partial(world.start, name))
    elif broker.replica is None:
        if random.random() < 0.2:
            world.guarded(name, partial(world.start, name))
    else:
        step(world)


def run(seed: int, brokers: int = 3) -> HarshWorld:
    try:
        return whole_run(seed, brokers)
    except AssertionError as error:
        error.add_note(f"seed {seed}, {brokers} brokers")
        raise


def whole_run(seed: int, brokers: int) -> HarshWorld:
    world = HarshWorld(seed, brokers)
    another_is_at_work = False

    def between_steps() -> None:
        nonlocal another_is_at_work
        meanwhile(world)
        if not another_is_at_work and world.random.random() < 0.03:
            another_is_at_work = True
            try:
                world.switch(world.random.choice([*world.brokers]))
            finally:
                another_is_at_work = False

    world.meanwhile = between_steps
    try:
        for _ in range(STEPS):
            harsh_step(world)
            world.check()
    except Undecided:
        return world
    master = world.settle()
    held = world.numbers_of(master.name)
    missing = set(world.acknowledged) - held
    assert not missing, f"acknowledged and lost: {sorted(missing)}"
    for name in world.brokers:
        assert world.numbers_of(name) == held, name
    return world


def test_a_switch_loses_nothing_or_says_what() -> None:
    worlds = [run(seed, brokers) for brokers in (3, 4, 5) for seed in range(SEEDS)]
    assert sum(len(world.acknowledged) for world in worlds) > 10 * SEEDS
    assert sum(world.switches for world in worlds) > 3 * SEEDS
