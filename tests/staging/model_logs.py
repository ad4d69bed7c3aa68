"""A log and its staging group in memory, with drivers that take turns, die, and leave requests behind.

One seed decides everything. Every call of a driver is a place where another one may go on, where it may
die before or after the call has its effect, or where its effect comes later, when the driver is dead.
The staging group deletes whatever nobody holds, as soon as it may.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.errors import IndexOutOfRange, OutcomeUnknown, ProducerFenced
from quorumlog.staging import RowRange
from quorumlog.staging.client_logs import ProducerState

T = TypeVar("T")


class Died(BaseException):
    """The driver was killed."""


class World:
    def __init__(self, seed: int, *, death: float = 0.02, unknown: float = 0.02) -> None:
        self.random = Random(seed)
        self._death, self._unknown = death, unknown
        self._late: list[Callable[[], object]] = []
        self._main = threading.Semaphore(0)
        self._running: list[_Driver] = []
        self.log, self.staging = ModelGroup(), ModelGroup()
        self.failures: list[BaseException] = []
        """What no run may show."""

    # ---------------------------------------------------------------- of a driver

    def call(self, effect: Callable[[], T]) -> T:
        driver = next(each for each in self._running if each.thread is threading.current_thread())
        self._main.release()
        driver.turn.acquire()
        chance = self.random.random()
        if chance < self._death + self._unknown:
            how = self.random.choice(("before", "after", "late"))
            if how == "after":
                effect()
            elif how == "late":
                self._late.append(effect)
            raise Died if chance < self._death else OutcomeUnknown(f"its effect comes {how}")
        return effect()

    # ---------------------------------------------------------------- the run

    @property
    def running(self) -> int:
        return len(self._running)

    def is_running(self, name: object) -> bool:
        return any(each.name == name for each in self._running)

    def start(self, life: Callable[[], None], name: object = None) -> None:
        self._running.append(_Driver(self, life, name))

    def step(self) -> None:
        """One driver goes as far as its next call."""
        if self._late and self.random.random() < 0.2:
            late = self._late.pop(self.random.randrange(len(self._late)))
            with suppress(ProducerFenced, IndexOutOfRange):  # nobody hears of it
                late()
        if self.random.random() < 0.5:
            self.staging.delete_what_nobody_holds()
        driver = self.random.choice(self._running)
        driver.turn.release()
        self._main.acquire()
        if driver.is_over:
            driver.thread.join()
            self._running.remove(driver)

    def end_faults(self) -> None:
        self._death = self._unknown = 0.0

    def over(self, driver: _Driver) -> None:
        driver.is_over = True
        self._main.release()


class _Driver:
    def __init__(self, world: World, life: Callable[[], None], name: object) -> None:
        self.name = name
        self.turn = threading.Semaphore(0)
        self.is_over = False
        self._world = world
        self._life = life
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._life()
        except Died:
            pass
        except BaseException as error:
            self._world.failures.append(error)
        finally:
            self._world.over(self)


# ---------------------------------------------------------------- groups


class ModelGroup:
    """What the log guarantees of sessions, readers that hold, and deletion."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keep_from = 0
        self._epochs: dict[str, int] = {}
        self._stands: dict[str, ProducerState] = {}
        self.holds: dict[str, int] = {}

    def delete_what_nobody_holds(self) -> None:
        self.keep_from = max(self.keep_from, min(self.holds.values(), default=len(self.bodies)))

    def connect(self, producer: str) -> tuple[int, int]:
        """(epoch, last sequence); the entry that opens it takes an index."""
        self.bodies.append(b"")
        epoch = self._epochs[producer] = len(self.bodies)
        stand = self._stands.setdefault(producer, ProducerState(-1, -1))
        return epoch, stand.last_sequence

    def append(self, bodies: list[bytes], producer: str = "", epoch: int = 0, sequence: int = 0) -> int:
        """Returns the index of the first."""
        if producer:
            if self._epochs[producer] != epoch:
                raise ProducerFenced("another one has connected")
            last = self._stands[producer].last_sequence
            if sequence != last + 1:
                assert sequence <= last, f"a gap: {sequence} behind {last}"
                return -1  # it is there already, and is not looked at
            self.bodies.append(b"")
            stand = ProducerState(last + len(bodies), len(self.bodies) + len(bodies) - 1)
            self._stands[producer] = stand
        self.bodies += bodies
        return len(self.bodies) - len(bodies)

    def stand(self, producer: str) -> ProducerState | None:
        return self._stands.get(producer)

    def read(self, first: int, stop: int) -> list[bytes]:
        if first < self.keep_from:
            raise IndexOutOfRange(f"{first} lies before {self.keep_from}")
        return self.bodies[first:stop]

    def take_hold(self, name: str) -> int:
        return self.holds.setdefault(name, self.keep_from)

    def move_hold(self, name: str, index: int) -> None:
        if name not in self.holds and index < self.keep_from:
            raise IndexOutOfRange(f"{index} lies before {self.keep_from}")
        self.holds[name] = max(index, self.holds.get(name, 0))


class ModelSession:
    def __init__(self, world: World, group: ModelGroup, producer: str) -> None:
        self._world, self._group, self._producer = world, group, producer
        self._epoch, self.last_sequence = world.call(lambda: group.connect(producer))

    def append(self, sequence: int, batches: Iterable[EntryBatch], machine: str = "") -> int:
        index = -1
        for batch in batches:
            bodies = [bytes(body) for body in batch.bodies()]
            index = self._world.call(self._appending(bodies, sequence))
            sequence += len(bodies)
            self.last_sequence = sequence - 1
            index += len(bodies) - 1
        return index

    def _appending(self, bodies: list[bytes], sequence: int) -> Callable[[], int]:
        return lambda: self._group.append(bodies, self._producer, self._epoch, sequence)


class ModelLog:
    """A group, as `SinkLog` has it."""

    def __init__(self, world: World, group: ModelGroup) -> None:
        self._world, self._group = world, group

    @contextmanager
    def session(self, producer: str) -> Generator[ModelSession]:
        yield ModelSession(self._world, self._group, producer)

    def producer(self, producer: str) -> ProducerState | None:
        return self._world.call(lambda: self._group.stand(producer))

    def body_at(self, index: int) -> bytes:
        return self._world.call(lambda: self._group.read(index, index + 1)[0])

    def batches(self, ranges: Iterable[RowRange]) -> Iterator[EntryBatch]:
        for each in ranges:
            for first in range(each.first_index, each.stop_index, 2):
                stop = min(first + 2, each.stop_index)
                yield EntryBatch.from_bodies(self._world.call(self._reading(first, stop)))

    def _reading(self, first: int, stop: int) -> Callable[[], list[bytes]]:
        return lambda: self._group.read(first, stop)

    def hold(self, name: str) -> int | None:
        return self._world.call(lambda: self._group.holds.get(name))

    def take_hold(self, name: str) -> int:
        return self._world.call(lambda: self._group.take_hold(name))

    def move_hold(self, name: str, index: int) -> None:
        self._world.call(lambda: self._group.move_hold(name, index))

    def end_hold(self, name: str) -> None:
        self._world.call(lambda: self._group.holds.pop(name, None))

    def forget(self, producer: str) -> None:
        raise NotImplementedError(producer)

    def stage(self, bodies: list[bytes]) -> RowRange:
        """A task's append, in no session."""
        return RowRange(self._world.call(lambda: self._group.append(bodies)), len(bodies))
