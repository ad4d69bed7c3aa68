"""The rule of epochs alone: brokers whose logs are lists of numbers, disks that lose what is not synced,
operators that are killed between any two steps. One seed decides everything."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from quorumlog.broker.epochs.epoch_history import CopyList, Epoch, EpochHistory, Peer, RunKey, judge
from quorumlog.broker.epochs.epoch_rule import (
    Shown,
    count_of,
    forced_list,
    held_offset,
    lists_in_force,
    may_promise,
    rank_of,
)

Item = tuple[RunKey, int]
"""The run in which it was written, and its number: two that are alike are the same message."""


class Crashed(Exception):
    """In the middle of what a broker does."""


class Report(NamedTuple):
    """On its way from a slave to its master."""

    master: str
    run: RunKey
    directory_id: str
    flushed: int


class Broker:
    def __init__(self, name: str) -> None:
        self.name = name
        self.directories = 0
        self.is_up = True
        self.empty()

    def empty(self) -> None:
        self.directories += 1
        self.me = Peer(id=self.name, directory_id=f"{self.name}{self.directories}")
        # In the record, which is on disk before anything that follows from it.
        self.promised = Epoch()
        self.history = EpochHistory()
        self.confirmed = RunKey()
        self.is_master = False
        # In the log.
        self.log: list[Item] = []
        self.flushed = 0
        # In memory.
        self.shown = 0
        self.forget()

    def forget(self) -> None:
        """The process ends."""
        self.follows: tuple[str, RunKey] | None = None
        self.leads = False
        self.marks: dict[str, int] = {}
        self.is_run_confirmed = False

    @property
    def directory_id(self) -> str:
        return self.me.directory_id

    @property
    def run(self) -> RunKey:
        assert self.history.last is not None
        return self.history.last.key

    @property
    def is_leading(self) -> bool:
        return self.is_up and self.leads and self.history.epoch == self.promised

    def show(self) -> Shown:
        return Shown(self.me, self.history, self.flushed, self.confirmed)


class RuleWorld:
    def __init__(self, seed: int, *, names: str = "", copies: int = 0) -> None:
        """`names`: who there is, all of them on the list; else the seed says it."""
        random = self.random = Random(seed)
        size = random.choice((2, 2, 3, 3, 4, 5))
        self.brokers = {name: Broker(name) for name in names or "abcde"[:size]}
        self.acknowledged: list[Item] = []
        """The longest past that was acknowledged."""
        self.led: dict[RunKey, str] = {}
        self.newest_confirmed = Epoch()
        self.reports: list[Report] = []
        self.operators: list[Iterator[None]] = []
        self.parted: set[frozenset[str]] = set()
        self.number = 0
        self.is_quiet = True
        self.count = {"switches": 0, "changes": 0, "unsafe": 0, "wipes": 0}
        self.is_unsafe_allowed = random.random() < 0.3
        self.most_wipes = random.choice((0, 0, 1, 2))
        first = self.brokers["a"]
        first.promised = Epoch(1, first.directory_id)
        listed = [b.me for b in self.brokers.values() if b is first or names or random.random() < 0.8]
        copies = copies or random.randrange(1, len(listed) + 1)
        self.begin(first, first.promised, CopyList(tuple(listed), copies))
        self.is_quiet = False

    # ---------------------------------------------------------------- what a broker does

    def maybe_crash(self, broker: Broker) -> None:
        if not self.is_quiet and self.random.random() < 0.02:
            self.crash(broker, power=self.random.random() < 0.5)
            raise Crashed

    def crash(self, broker: Broker, *, power: bool) -> None:
        if power:
            kept = self.random.randrange(broker.flushed, len(broker.log) + 1)
            del broker.log[kept:]
            broker.flushed = min(broker.flushed, len(broker.log))
        broker.shown = min(broker.shown, len(broker.log))
        broker.is_up = False
        broker.forget()

    def start(self, broker: Broker) -> None:
        broker.is_up = True
        if broker.is_master and broker.history.epoch == broker.promised:
            self.begin(broker, broker.promised)

    def begin(
        self, broker: Broker, epoch: Epoch, copy_list: CopyList | None = None, *, is_forced: bool = False
    ) -> None:
        broker.forget()
        broker.flushed = len(broker.log)
        self.maybe_crash(broker)
        broker.history = broker.history.begun(
            epoch, len(broker.log), copy_list, is_forced=is_forced, is_flushed=True
        )
        broker.is_master, broker.leads = True, True
        assert self.led.setdefault(broker.run, broker.directory_id) == broker.directory_id
        keys = [run for run in self.led if run[:2] == epoch]
        assert {self.led[run] for run in keys} == {broker.directory_id}, f"two lead in {epoch}"

    def promise(self, broker: Broker, epoch: Epoch) -> Shown | None:
        if not broker.is_up or not may_promise(broker.promised, epoch):
            return None
        broker.promised, broker.follows = epoch, None
        self.maybe_crash(broker)
        broker.flushed = len(broker.log)
        return broker.show()

    def put(self, broker: Broker) -> None:
        lists = lists_in_force(broker.history, broker.confirmed)
        if lists[-1].copies <= len(lists[-1].members):
            broker.log.append((broker.run, self.number))
            self.number += 1

    def follow(self, slave: Broker, master: Broker) -> None:
        epoch, history = master.promised, master.history
        if epoch < slave.promised:
            return
        if slave.follows == (master.directory_id, master.run):
            self.take(slave, master)
            return
        verdict = judge(
            slave.history,
            len(slave.log),
            history,
            len(master.log),
            directory_id=slave.directory_id,
        )
        if verdict.problem:
            listed = lists_in_force(master.history, master.confirmed)
            assert slave.directory_id not in listed[-1].directories, verdict
            return
        slave.forget()
        slave.promised, slave.is_master = epoch, False
        self.maybe_crash(slave)
        if verdict.cuts:
            assert slave.shown <= verdict.common_offset, "what was shown is cut off"
            del slave.log[verdict.common_offset :]
            slave.flushed = min(slave.flushed, len(slave.log))
            self.maybe_crash(slave)
        slave.history = history
        slave.follows = (master.directory_id, master.run)

    def take(self, slave: Broker, master: Broker) -> None:
        start = len(slave.log)
        slave.log += master.log[start : self.random.randrange(start, len(master.log) + 1)]
        assert slave.log == master.log[: len(slave.log)], "two logs that have a run differ"
        self.show_to(slave, min(master.shown, len(slave.log)))
        last = slave.history.held(slave.flushed).last
        if master.is_run_confirmed and last is not None and last.key == master.run:
            slave.confirmed = max(slave.confirmed, last.key)

    def report(self, slave: Broker) -> None:
        if slave.follows is not None:
            self.reports.append(Report(*slave.follows, slave.directory_id, slave.flushed))

    def hear(self, report: Report) -> None:
        for master in self.brokers.values():
            is_it = master.leads and (master.directory_id, master.run) == report[:2]
            if master.is_up and is_it:
                held = master.marks.get(report.directory_id, -1)
                master.marks[report.directory_id] = max(held, report.flushed)

    def confirm(self, master: Broker) -> None:
        """Also of one that has promised another epoch meanwhile: it may hear late of what was."""
        if not master.is_up or not master.leads:
            return
        last = master.history.last
        assert last is not None
        offsets = {**master.marks, master.directory_id: master.flushed}
        while True:
            lists = lists_in_force(master.history, master.confirmed)
            held = held_offset(lists, offsets, master.flushed)
            if held < last.start_offset:
                return
            self.acknowledge(master, held)
            if master.is_run_confirmed:
                return
            master.is_run_confirmed, master.confirmed = True, last.key

    def acknowledge(self, master: Broker, offset: int) -> None:
        past = master.log[:offset]
        common = min(len(past), len(self.acknowledged))
        assert past[:common] == self.acknowledged[:common], "acknowledged, and something else before"
        if len(past) > common:
            assert master.history.epoch >= self.newest_confirmed, "two confirm at once"
            self.acknowledged = past
        self.newest_confirmed = max(self.newest_confirmed, master.history.epoch)
        self.show_to(master, offset)

    def show_to(self, broker: Broker, offset: int) -> None:
        if offset > broker.shown:
            broker.shown = offset
            assert broker.log[:offset] == self.acknowledged[:offset], "shown, and not acknowledged"

    def change(self, master: Broker) -> None:
        """One in, one out, or another number of copies; one at a time."""
        lists = lists_in_force(master.history, master.confirmed)
        if not master.is_leading or not master.is_run_confirmed:
            return
        listed, copies = list(lists[-1].members), lists[-1].copies
        known = {peer.directory_id for peer in listed}
        others = [
            b.me
            for b in self.brokers.values()
            if b.directory_id not in known and master.marks.get(b.directory_id, -1) >= master.shown
        ]
        kind = self.random.random()
        if kind < 0.5 and others:
            new = self.random.choice(others)
            listed = [peer for peer in listed if peer.id != new.id] + [new]
        elif kind < 0.75:
            gone = self.random.choice(listed)
            if gone == master.me or copies >= len(listed):
                return
            listed.remove(gone)
        else:
            copies += self.random.choice((-1, 1))
        if 1 <= copies <= len(listed):
            self.count["changes"] += 1
            self.begin(master, master.promised, CopyList(tuple(listed), copies))

    # ---------------------------------------------------------------- an operator

    def switch(self, to: str, *, is_unsafe: bool = False) -> Iterator[None]:
        asked = [b for b in self.brokers.values() if b.is_up and self.random.random() < 0.9]
        directories = [b.directory_id for b in asked]
        leader = self.brokers[to]
        if leader not in asked:
            return
        epoch = Epoch(1 + max(b.promised.number for b in asked), leader.directory_id)
        yield
        shown: dict[str, Shown] = {}
        for broker, directory_id in zip(asked, directories, strict=True):
            if broker.directory_id == directory_id:
                answer = self.promise(broker, epoch)
                if answer is not None:
                    shown[directory_id] = answer
            yield
        own = shown.get(epoch.leader)
        if own is None:
            return
        count = count_of(own, shown.values())
        if not is_unsafe:
            if not count.may_lead:
                return
            yield
            if not self.may_lead(leader, epoch):
                return
            leader.confirmed = max(leader.confirmed, count.confirmed)
            self.begin(leader, epoch)
            self.count["switches"] += 1
            return
        # In one step: nobody can say what is lost if two do this at once.
        if not self.may_lead(leader, epoch):
            return
        gone = [b for b in self.brokers.values() if b.directory_id not in shown]
        listed = forced_list(own, shown.values())
        self.begin(leader, epoch, listed, is_forced=True)
        for broker in gone:
            broker.empty()
        self.count["unsafe"] += 1
        common = 0
        while common < min(len(leader.log), len(self.acknowledged)):
            if leader.log[common] != self.acknowledged[common]:
                break
            common += 1
        del self.acknowledged[common:]
        for broker in self.brokers.values():
            broker.shown = min(broker.shown, common)
            broker.leads = broker is leader  # what an older one hears late is of what was given up

    @staticmethod
    def may_lead(broker: Broker, epoch: Epoch) -> bool:
        is_promised = broker.promised == epoch and broker.history.epoch != epoch
        return broker.is_up and broker.directory_id == epoch.leader and is_promised

    # ---------------------------------------------------------------- what happens

    def reach(self, one: Broker, other: Broker) -> bool:
        return frozenset((one.name, other.name)) not in self.parted

    def step(self) -> None:
        random = self.random
        broker = random.choice(list(self.brokers.values()))
        leaders = [b for b in self.brokers.values() if b.is_leading]
        what = random.random()
        try:
            if what < 0.12 and leaders:
                self.put(random.choice(leaders))
            elif what < 0.42 and leaders:
                master = max(leaders, key=lambda b: (random.random() < 0.8, b.promised))
                if broker.is_up and broker is not master and self.reach(broker, master):
                    self.follow(broker, master)
            elif what < 0.55 and broker.is_up:
                broker.flushed = len(broker.log)
                self.report(broker)
            elif what < 0.67 and self.reports:
                self.hear(self.reports.pop(random.randrange(len(self.reports))))
            elif what < 0.77:
                self.confirm(broker)
            elif what < 0.785 and broker.is_up:
                self.crash(broker, power=random.random() < 0.5)
            elif what < 0.84 and not broker.is_up:
                self.start(broker)
            elif what < 0.86:
                unsafe = self.is_unsafe_allowed and random.random() < 0.05
                self.operators.append(self.switch(broker.name, is_unsafe=unsafe))
            elif what < 0.87:
                self.parted ^= {frozenset((broker.name, random.choice(list(self.brokers))))}
            elif what < 0.92 and leaders:
                self.change(max(leaders, key=lambda b: (b.is_run_confirmed, b.promised)))
            elif what < 0.923 and self.count["wipes"] < self.most_wipes:
                self.count["wipes"] += 1
                broker.empty()
            elif self.operators:
                operator = random.choice(self.operators)
                if random.random() < 0.02 or next(operator, self) is self:
                    self.operators.remove(operator)
        except Crashed:
            pass

    # ---------------------------------------------------------------- the end

    def quiet(self) -> None:
        """No fault from here on."""
        self.operators.clear()
        self.parted.clear()
        self.is_quiet = True

    def serves(self) -> bool:
        """With those that are up and an operator's command, a message is acknowledged."""
        living = [b for b in self.brokers.values() if b.is_up]
        for _ in range(4):
            newest = max(b.promised for b in living)
            leader = next((b for b in living if b.is_leading and b.promised == newest), None)
            if leader is None:
                living.sort(key=lambda b: rank_of(b.history, len(b.log)), reverse=True)
                for candidate in living:
                    self.until_done(self.switch(candidate.name))
                    if candidate.is_leading:
                        leader = candidate
                        break
                else:
                    return False
            before, wanted = len(self.acknowledged), len(leader.log)
            self.put(leader)
            for _ in range(30):
                for broker in living:
                    if broker is not leader:
                        self.follow(broker, leader)
                    broker.flushed = len(broker.log)
                    self.report(broker)
                while self.reports:
                    self.hear(self.reports.pop())
                self.confirm(leader)
            if len(leader.log) > wanted and len(self.acknowledged) == len(leader.log) > before:
                return True
        return False

    def until_done(self, operator: Iterator[None]) -> None:
        random, self.random = self.random, Always()
        for _ in operator:
            pass
        self.random = random


class Always(Random):
    """Every broker is asked."""

    def random(self) -> float:
        return 0.5


def run(seed: int, steps: int = 400) -> RuleWorld:
    try:
        return _run(seed, steps)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def _run(seed: int, steps: int) -> RuleWorld:
    world = RuleWorld(seed)
    for _ in range(steps):
        world.step()
    world.quiet()
    for broker in world.brokers.values():
        if not broker.is_up:
            world.start(broker)
    if not world.serves():
        assert world.count["wipes"] or world.count["unsafe"], (
            "all are there, and nothing is acknowledged"
        )
        return world
    leader = max((b for b in world.brokers.values() if b.is_leading), key=lambda b: b.promised)
    newest = lists_in_force(leader.history, leader.confirmed)[-1]
    there = [b for b in world.brokers.values() if b.directory_id in newest.directories]
    least = max(newest.needed, newest.promises)
    if len(there) >= least:
        world.random.shuffle(there)
        for broker in there[least:]:
            world.crash(broker, power=True)
        assert world.serves(), f"{least} of {newest} are there, and nothing is acknowledged"
    return world
