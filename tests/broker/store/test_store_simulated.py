"""A store of one machine over many lives: killed, without power, derived files lost, the log damaged,
its oldest files taken by retention. One seed decides everything.

After each start the log is a prefix of what was put, with all that was acknowledged; queues and index
say what a rebuild from the log alone says, and each queue goes on with the number that is next.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from random import Random

from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.store.log_files import LogEnd, PutOutcome, PutRequest
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.errors import DirectoryDamaged
from quorumlog.testing.disk import Crashed, SimDisk
from tests.broker.store.store_making import ROOT, SMALL, Clock, is_ok, numbered, open_store, records_of

SEEDS = int(os.environ.get("QUORUMLOG_STORE_SEEDS", "4"))
"""`make broker-crashes`: many more."""
LIVES, STEPS = 6, 60
DERIVED = ("/consumequeue/", "/index/")
KEYS = 7
QUEUES = 4
"""Into the last one little is put."""


class StoreRun:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.config = SMALL if seed % 2 else replace(SMALL, flush_disk_type=ASYNC_FLUSH)
        self.disk, self.clock = SimDisk(), Clock()
        self.put_numbers: list[int] = []
        """In the order of the log; what a life has lost goes."""
        self.acknowledged: set[int] = set()
        """What no kill may lose."""
        self.safe: set[int] = set()
        """What no loss of power may lose: all of it with SYNC_FLUSH, else what was flushed."""
        self.has_lost_power = False
        self.places: dict[int, tuple[int, int]] = {}
        """Queue and queue offset by number."""
        self.gone: set[int] = set()
        """Numbers that retention has taken, or was taking."""
        self.next_number = 0
        self.counts = {"starts": 0, "power": 0, "refused": 0, "derived": 0, "dropped": 0}
        self.store = self.started()

    # ---------------------------------------------------------------- a life

    def step(self) -> None:
        random, store = self.random, self.store
        what = random.random()
        if what < 0.5:
            self.put()
        elif what < 0.7:
            store.flush_once()
        elif what < 0.85:
            store.reput_once()
        elif what < 0.92:
            store.flush_queues(thorough=random.random() < 0.5)
        elif what < 0.95:
            self.drop()
        else:
            store.commit_log.flush(0)
            self.safe.update(self.put_numbers)

    def put(self) -> None:
        count, size = self.random.randrange(1, 5), self.random.choice((10, 100, 900))
        numbers = range(self.next_number, self.next_number + count)
        self.next_number += count
        messages = [replace(m, keys=(f"k{n % KEYS}",)) for n, m in zip(
            numbers, numbered(numbers[0], count, size=size), strict=True)]  # fmt: skip
        self.put_numbers += numbers

        def done(outcome: PutOutcome) -> None:
            assert is_ok(outcome), outcome
            self.acknowledged.update(numbers)
            if self.config.is_sync_flush:
                self.safe.update(numbers)

        queue_id = QUEUES - 1 if self.random.random() < 0.04 else self.random.randrange(QUEUES - 1)
        first = self.store.commit_log.next_queue_offsets.get(QueueKey("t", queue_id), 0)
        self.places |= {number: (queue_id, first + n) for n, number in enumerate(numbers)}
        batch = records_of(messages, queue_id)
        self.store.commit_log.put([PutRequest(batch, True, done)])

    def drop(self) -> None:
        """As the cleaner does: files that are on disk and dispatched."""
        log, reput = self.store.commit_log, self.store.reput
        stop = log.files.base_of(min(log.flushed_offset, reput.reput_from_offset))
        if stop > log.min_offset:
            self.counts["dropped"] += 1
            stop = self.random.choice([base for base in log.files.bases[1:] if base <= stop])
            self.gone.update(
                number
                for at, number, _ in self.rows(self.store)
                if at < stop and number not in self.gone
            )
            self.store.cleaner.drop_before(stop)

    def end(self) -> None:
        """Of a life, and what befalls the directory while nothing runs."""
        random = self.random
        if random.random() < 0.2:
            self.store.close()
            self.safe.update(self.put_numbers)
            with OfflineStore(ROOT, self.disk) as stopped:
                assert stopped.verify()["problems"] == []
        elif random.random() < 0.5:
            self.disk.kill()
        else:
            self.lose_power()
        if random.random() < 0.3:
            self.counts["derived"] += 1
            part = random.choice(DERIVED)
            paths = [path for path in self.disk.paths() if part in path]
            # Of queues one file is missed; one index file may have held no key that anybody has.
            few = part == DERIVED[0] and random.random() < 0.5
            for path in random.sample(paths, min(1, len(paths))) if few else paths:
                self.disk.delete(path)

    def lose_power(self) -> None:
        self.counts["power"] += 1
        self.has_lost_power = True
        self.disk.lose_power(self.random)

    # ---------------------------------------------------------------- a start

    def started(self) -> MessageStore:
        """Perhaps at the second or third try: a start may be cut short, too."""
        self.counts["starts"] += 1
        while self.random.random() < 0.3:
            self.disk.crash_countdown = self.random.randrange(1, 30)
            with suppress(Crashed):
                open_store(self.disk, self.config, self.clock)
            self.disk.crash_countdown = None
            if self.random.random() < 0.5:
                self.lose_power()
            else:
                self.disk.kill()
        self.is_refused_where_it_is_damaged()
        store = open_store(self.disk, self.config, self.clock)
        self.check(store)
        return store

    def is_refused_where_it_is_damaged(self) -> None:
        """A flipped bit of what was promised, in the file in which the log ends."""
        if self.random.random() < 0.7 or not self.safe or not self.disk.exists(f"{ROOT}/abort"):
            return
        at = -1
        with OfflineStore(ROOT, self.disk) as stopped:
            flushed = stopped.flushed_offset() or 0
            for found in stopped.walk(LogEnd(0)):
                bodies = found.position + found.records.columns.body_starts
                known = bodies[bodies < flushed - 1000]
                at = int(known[-1]) if len(known) else at
        if at < 0 or flushed - at > 2000:
            return
        base = at - at % SMALL.mapped_file_size_commit_log
        path, at = f"{ROOT}/commitlog/{base:020d}", at - base
        self.disk.flip(path, at, 1)
        try:
            open_store(self.disk, self.config, self.clock)
        except DirectoryDamaged:
            self.counts["refused"] += 1
        # Otherwise the checkpoint says that it need not be looked at: it is found when it is read.
        self.disk.kill()
        self.disk.flip(path, at, 1)

    def check(self, store: MessageStore) -> None:
        try:
            held = [n for n, _ in self.shown(store)]
        except MessageDamaged as error:
            raise AssertionError(f"a queue names what is not there: {error}") from None
        there = set(held) | self.gone
        put = [number for number in self.put_numbers if number in there]
        assert put == self.put_numbers[: len(put)], "the log is not a prefix of what was put"
        assert held == put[len(put) - len(held) :], "retention has taken more than the oldest"
        lost = (self.safe if self.has_lost_power else self.acknowledged) - there
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        for queue_id in range(QUEUES):
            ends = [at + 1 for number in put for queue, at in [self.places[number]] if queue == queue_id]
            found = store.commit_log.next_queue_offsets.get(QueueKey("t", queue_id), 0)
            assert found == max(ends, default=0), f"queue {queue_id} goes on at {found}"
        held = put
        self.put_numbers, self.acknowledged = held, self.acknowledged & set(held)
        self.safe = set(held)  # consumers see it: a start does not show what is in the cache alone
        self.has_lost_power = False
        self.equals_a_rebuild(store)

    def equals_a_rebuild(self, store: MessageStore) -> None:
        found = self.disk.snapshot().items()
        bare = SimDisk()
        bare.restore({p: data for p, data in found if not any(part in p for part in DERIVED)})
        bare.make_directory(f"{ROOT}/commitlog")  # which may hold no file yet
        rebuilt = open_store(bare, self.config, Clock(self.clock.now_ms))
        for queue_id in range(QUEUES):
            queues = [each.queues.get(QueueKey("t", queue_id)) for each in (store, rebuilt)]
            units = [
                (0, b"") if q is None else (q.max_offset, q.units(0, q.max_offset).tobytes())
                for q in queues
            ]
            assert units[0] == units[1], f"queue {queue_id} is not what the log says"
        for number in range(KEYS):
            of_key = [
                [m.physical_offset for m in each.reader.query("t", f"k{number}", most=10_000).messages()]
                for each in (store, rebuilt)
            ]
            assert of_key[0] == of_key[1], f"the index of k{number} is not what the log says"
        bare.kill()

    def shown(self, store: MessageStore) -> list[tuple[int, int]]:
        """(number, queue) of what queues show, in the order of the log."""
        return [(number, queue_id) for _, number, queue_id in self.rows(store)]

    def rows(self, store: MessageStore) -> list[tuple[int, int, int]]:
        rows = []
        for queue_id in range(QUEUES):
            queue = store.queues.get(QueueKey("t", queue_id))
            if queue is not None:
                key = QueueKey("t", queue_id)
                pulled = store.reader.pull(key, queue.min_offset, 100_000, 1 << 30)
                for m in pulled.records.messages():
                    number = int(m.body[:6])
                    assert self.places[number] == (queue_id, m.queue_offset), number
                    rows.append((m.physical_offset, number, queue_id))
        return sorted(rows)


def run(seed: int) -> StoreRun:
    try:
        return whole_run(seed)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise


def whole_run(seed: int) -> StoreRun:
    world = StoreRun(seed)
    for _ in range(LIVES):
        if world.random.random() < 0.5:
            world.disk.crash_countdown = world.random.randrange(1, 200)
        try:
            for _ in range(world.random.randrange(STEPS)):
                world.step()
            world.disk.crash_countdown = None
            world.end()
        except Crashed:
            world.disk.crash_countdown = None
            if world.random.random() < 0.5:
                world.lose_power()
            else:
                world.disk.kill()
        world.store = world.started()
    return world


def test_nothing_promised_is_lost_and_what_is_derived_equals_a_rebuild() -> None:
    runs = [run(seed) for seed in range(SEEDS)]
    for what in ("power", "refused", "derived", "dropped"):
        assert sum(each.counts[what] for each in runs) > 0, what
    assert sum(len(each.put_numbers) for each in runs) > 200
