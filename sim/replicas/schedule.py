"""A schedule: everything that goes wrong, drawn from a seed; then nothing does any more, and those that
are there must go on and become the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from random import Random

from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.failover import FailoverOptions
from quorumlog.broker.offline.offline_store import OfflineStore
from sim.ran import Ran
from sim.replicas.machines import SMALL, TICK_MS, Broker
from sim.replicas.promises import KEY, ROOT, places_in
from sim.replicas.registers import REGISTERS, SimRegister
from sim.replicas.world import GivenUp, World

BY_HAND = "by hand"
KINDS = {BY_HAND: None, "store": REGISTERS[0], "etcd": REGISTERS[1], "zookeeper": REGISTERS[2]}
"""Who says which of them leads."""
STEPS = 600
USERS_SHARE = 0.25
"""Of the runs."""
LATE_MS = 3_000
"""No request to a register is on its way for so long."""
WHOLE_ROUNDS = 2_500


def world_of(seed: int, brokers: int, register: type[SimRegister] | None = None) -> World:
    random = Random(seed)
    config, copies = SMALL, 0
    if random.random() < 0.25:
        config = replace(config, flush_disk_type=ASYNC_FLUSH)
    if random.random() < 0.3:
        every_hour = ";".join(str(hour) for hour in range(24))
        config = replace(config, delete_when=every_hour, file_reserved_time=0)
    options = FailoverOptions(
        lease_ms=random.choice((1_000, 3_000)), in_sync_timeout_ms=random.choice((300, 1_500))
    )
    if register is not None:
        copies = min(random.choice((1, 2, 2, 3)), brokers)
    return World(
        seed,
        brokers,
        copies,
        config=config,
        is_harsh=True,
        register=register,
        options=options,
        has_users=Random(f"users {seed}").random() < USERS_SHARE,
    )


# -------------------------------------------------------------------- faults


def quiet_step(world: World, name: str) -> None:
    """Of this broker: nobody fails and nobody switches."""
    random, broker = world.random, world.brokers[name]
    what = random.random()
    if not broker.is_running:
        return
    if what < 0.25:
        if not broker.is_slow or random.random() < 0.1:
            world.guarded(name, broker.work)
    elif what < 0.3:
        world.note()
    elif what < 0.5 and world.masters:
        master = random.choice(world.masters)
        world.guarded(master.name, lambda: world.put(master))
    else:
        pump(world, name)


def pump(world: World, name: str) -> None:
    world.guarded(name, lambda: world.connect(name))
    world.guarded(name, lambda: world.pump(name, world.random.choice((7, 300, 100_000, 100_000))))


def down(world: World, broker: Broker) -> None:
    power = world.loses_power
    world.tell("power lost" if power else "kills", broker.name)
    broker.crash(world.random, power=power)


def pause(world: World, broker: Broker) -> None:
    """SIGSTOP: what comes waits, and time goes on."""
    if not broker.is_running:
        return
    world.tell("pauses", broker.name)
    broker.is_paused = True
    replica = broker.replica

    def go_on() -> None:
        if broker.replica is replica and broker.is_paused:
            broker.go_on()

    lease_ms = world.options.lease_ms
    world.clock.at(lease_ms * world.random.choice((0.1, 0.9, 1.5, 4.0)), go_on)


def cut(world: World, name: str) -> None:
    random = world.random
    kind = random.random()
    if kind < 0.35:
        world.tell("cut off", name)
        world.away.add(name)
        world.cut(name)
    elif kind < 0.6:
        world.tell("hidden", name)
        world.hidden.add(name)
    elif kind < 0.9:
        world.tell("parted", name)
        world.cut(name)
        world.parted ^= {frozenset((name, random.choice([*world.brokers])))}
    else:
        world.parted.clear()


def wipe(world: World, broker: Broker) -> None:
    if world.counts["wipes"] >= world.most_wipes:
        return
    register = world.register
    if register is not None:
        is_late = world.clock.now_ms > register.last_put_ms + LATE_MS
        if len(in_sync(world)) < len(world.brokers) or not is_late:
            return  # two copies at once are more than is promised
    world.tell("wipes", broker.name)
    others = [name for name in world.brokers if name != broker.name]
    broker.empty("" if world.register is not None else world.random.choice(others))


def a_master_falls(world: World) -> None:
    """With messages that nobody has yet, or few; perhaps it comes back for a moment. Then somebody
    switches."""
    random = world.random
    if not world.masters:
        return
    master = random.choice(world.masters)
    others = [name for name in world.brokers if name != master.name]
    master.is_slow |= random.random() < 0.2  # its slaves have what it writes before its own disk has
    for _ in range(random.randrange(1, 9)):
        if not master.is_running:
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
            down(world, master)
            if random.random() < 0.3:  # it shows itself once more
                world.guarded(master.name, master.start)
                world.check()
                if master.replica is not None:
                    master.crash(random, power=False)
    if world.register is not None:
        return
    random.shuffle(others)
    for name in others:
        if not world.switch(name, is_gone_at=random.choice((-1, -1, random.randrange(12)))):
            break


def operate(world: World, name: str) -> None:
    """By hand."""
    random = world.random
    what = random.random()
    if what < 0.3:
        if random.random() < 0.3:
            victim = world.brokers[random.choice([*world.brokers])]
            victim.disk.crash_countdown = random.randrange(1, 30)
        world.switch(name, is_gone_at=random.choice((-1, -1, random.randrange(12))))
    elif what < 0.4:
        world.tick()
    elif what < 0.99:
        if world.masters:
            world.change(random.choice(world.masters).name)
    elif not world.is_past_given_up and random.random() < world.forced_share:
        world.force(name)


def step(world: World) -> None:
    random = world.random
    name = random.choice([*world.brokers])
    broker = world.brokers[name]
    what = random.random()
    if what < 0.005:
        if broker.replica is not None:
            down(world, broker)
    elif what < 0.010:
        broker.disk.crash_countdown = random.randrange(1, 60)
    elif name in world.away | world.hidden and what < 0.07:
        world.away.discard(name)
        world.hidden.discard(name)
    elif what < 0.024:
        cut(world, name)
    elif what < 0.034:
        broker.is_slow = not broker.is_slow
    elif what < 0.038:
        pause(world, broker)
    elif what < 0.046:
        a_master_falls(world)
    elif what < 0.047:
        wipe(world, broker)
    elif what < 0.048 and name in world.old:
        world.upgrade_slave(name)
    elif what < 0.055:
        if broker.is_running:
            world.retain(broker)
    elif what < 0.100:
        if world.register is None:
            operate(world, name)
        elif what < 0.058 and broker.elected is not None and broker.is_running:
            world.tell("resignations", name)
            broker.elected.rules.resign(broker.clock())
    elif broker.replica is None:
        if random.random() < 0.2:
            world.guarded(name, broker.start)
    elif not broker.is_running:
        pass
    elif what < 0.24 and world.masters:
        master = random.choice(world.masters)
        world.guarded(master.name, lambda: world.put(master))
    elif what < 0.40:
        if not broker.is_slow or random.random() < 0.1:
            world.guarded(name, broker.work)
    elif what < 0.45:
        world.note()
    else:
        pump(world, name)


def meanwhile_of(world: World) -> Callable[[], None]:
    another_is_at_work = False

    def meanwhile() -> None:
        """Between two steps of an operator, who may be slow; another one may be at work."""
        nonlocal another_is_at_work
        random = world.random
        for _ in range(random.choice((0, 0, 1, 4))):
            quiet_step(world, random.choice([*world.brokers]))
        world.clock.advance(random.choice((0.0, 5.0, 40.0)))
        if random.random() < 0.05:
            world.tick()
        if not another_is_at_work and random.random() < 0.12:
            another_is_at_work = True
            try:
                if world.masters and random.random() < 0.3:
                    world.change(random.choice(world.masters).name)
                else:
                    world.switch(random.choice([*world.brokers]))
            finally:
                another_is_at_work = False

    return meanwhile


# -------------------------------------------------------------------- a run


def is_upgraded(world: World) -> None:
    """Some of its slaves are of the release before yet."""
    world.form_group()
    world.upgrade()
    slaves = [name for name in world.brokers if name != "a"]
    world.old.update(world.random.sample(slaves, world.random.randrange(len(slaves) + 1)))
    world.counts["old brokers"] += len(world.old)


def play(seed: int, brokers: int, register: type[SimRegister] | None = None) -> World:
    """Raises what was violated, as AssertionError."""
    world = world_of(seed, brokers, register)
    try:
        if register is None and world.random.random() < 0.15 and world.user_work is None:
            is_upgraded(world)
        world.meanwhile = meanwhile_of(world)
        for _ in range(STEPS):
            step(world)
            if world.user_work is not None:
                world.user_work.step()
            world.clock.advance(world.random.choice((0.0, 1.0, 5.0, 30.0)))
            world.check()
        if register is None:
            ends_well(world)
        else:
            becomes_whole(world)
            goes_on_without_its_master(world)
    except GivenUp as given_up:
        world.story.append(str(given_up))
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}, {brokers} brokers, {register}", *world.story[-30:]]))
        raise
    world.counts["acknowledged"] = len(world.acknowledged)
    world.counts["epochs"] = len({key[:2] for key in world.promises.led})
    world.counts["runs of a leader"] = len(world.promises.led)
    return world


def ends_well(world: World) -> None:
    """By hand."""
    master = world.settle()
    world.promises.has_everything(master)
    queue = master.living.store.queues.get(KEY)
    held = 0 if queue is None else queue.max_offset - queue.min_offset
    assert held == len(places_in(master.living))
    goes_on_with_the_least(world, master)
    world.start_all()
    world.settle()
    are_the_same(world)


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
        brokers[name].crash(world.random, power=world.config.is_sync_flush)
    assert world.serves(), f"{there[:least]} of {there} with {listed.copies} copies: {world.story[-20:]}"


def in_sync(world: World) -> list[Broker]:
    """By the register."""
    record = None if world.register is None else world.register.record
    if record is None:
        return []
    return [
        broker
        for broker in world.brokers.values()
        if broker.replica is not None and record.in_sync.get(broker.name) == broker.living.directory_id
    ]


def becomes_whole(world: World) -> None:
    """By a register."""
    world.quiet()
    world.start_all()
    is_acknowledged(world)

    def is_whole() -> bool:
        members = [broker.name for broker in in_sync(world)]
        for name in sorted(
            world.refused
        ):  # a tail of its own, and the master has deleted what is common
            assert name not in members, f"{name} is in sync and cannot follow"
            world.brokers[name].empty("")
        world.refused.clear()
        return len(in_sync(world)) == len(world.brokers) and any(map(world.is_same, serving(world)))

    until(world, is_whole, "whole")
    for broker in world.brokers.values():
        broker.work()
    world.check()
    for broker in world.brokers.values():
        world.promises.has_everything(broker)


def serving(world: World) -> list[Broker]:
    return [broker for broker in world.masters if broker.living.takes_messages]


def until(world: World, holds: Callable[[], bool], what: str) -> None:
    for _ in range(WHOLE_ROUNDS):
        if holds():
            return
        world.turn([*world.brokers])
        world.check()
    problems = {b.name: b.elected.rules.problem for b in world.brokers.values() if b.elected is not None}
    record = None if world.register is None else world.register.record
    raise AssertionError(f"they do not become {what}: {record}, {problems}")


def is_acknowledged(world: World) -> None:
    before, looks = len(world.acknowledged), count()

    def more() -> bool:
        for master in world.masters:
            if next(looks) % 10 == 0:
                world.put(master)
        return len(world.acknowledged) > before

    until(world, more, "able to acknowledge")


def goes_on_without_its_master(world: World) -> None:
    """And with whoever else is in sync, as long as they are as many as there must be."""
    # What a master asked for in vain while its slaves were late may come yet; nobody is late meanwhile.
    world.turns(LATE_MS // int(TICK_MS))
    until(world, lambda: bool(serving(world)), "led")
    if len(world.brokers) - 1 >= world.config.in_sync_replicas:
        for master in serving(world):
            world.tell("last kills", master.name)
            master.crash(world.random, power=world.config.is_sync_flush)
        if in_sync(world):
            is_acknowledged(world)
    becomes_whole(world)
    are_the_same(world)


def are_the_same(world: World) -> None:
    """Byte for byte, as far as retention has left them; and stopped, they hold."""
    if world.user_work is not None:
        world.user_work.end()
    low = max(broker.living.min_offset for broker in world.brokers.values())
    logs = set()
    for broker in world.brokers.values():
        store = broker.living.store
        logs.add(store.commit_log.read_bytes(low, store.commit_log.max_offset - low))
        store.close()
        broker.disk.kill()
        with OfflineStore(ROOT, broker.disk) as stopped:
            assert stopped.verify()["problems"] == []
    assert len(logs) == 1, "the logs differ"


def by_hand(seeds: int = 240) -> None:
    """What mutants are run against."""
    with _silent():
        for seed in range(seeds):
            play(seed, 2 + seed % 4)


@contextmanager
def _silent() -> Iterator[None]:
    """What brokers say of a fault is no news where there are thousands."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def run(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Ran:
    """One of many: half of them by hand. Raises nothing."""
    registers = [kind for kind in kinds if kind != BY_HAND]
    by_hand = BY_HAND in kinds and (seed % 2 == 0 or not registers)
    kind = BY_HAND if by_hand else registers[seed // 2 % len(registers)]
    brokers = 2 + seed // 6 % 4
    ran = Ran(seed)
    with ran.noting_failure(), _silent():
        ran.counts = play(seed, brokers, KINDS[kind]).counts
    ran.counts[f"schedules {kind}"] += 1
    ran.counts = Counter({f"replicas: {what}": times for what, times in ran.counts.items()})
    return ran
