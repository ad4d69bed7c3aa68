"""Any sequence of calls against a plain list (Hypothesis), in memory and on a disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.errors import IndexOutOfRange
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.flush import Flush
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogRange
from quorumlog.store.memory_disk import MemoryDisk
from tests.store.log_making import append_batch, append_bodies, new_store, open_store, read_log

Model = list[tuple[int, int, bytes]]
CONFIG = StoreConfig(
    segment_bytes=700,
    index_segment_bytes=160,
    reserve_step_bytes=256,
    index_sync_bytes=1000,
    disk_full_ratio=1.0,
)
BODIES = st.lists(st.binary(max_size=40) | st.integers(0, 644).map(bytes), min_size=1, max_size=12)


class LedgerStoreMachine(RuleBasedStateMachine):
    """What the store says must be what the list says, after every step."""

    store: LedgerStore
    disk: Disk
    path: str

    def __init__(self) -> None:
        super().__init__()
        self.model: Model = []
        self.term = 1
        self.task: Flush | None = None
        self.task_covers = 0
        self.durable = 0
        self.ranges: list[tuple[LogRange, Model]] = []
        self.space: Callable[[], None] | None = None

    @rule(bodies=BODIES)
    def append(self, bodies: list[bytes]) -> None:
        first = len(self.model)
        append_bodies(self.store, bodies, self.term)
        self.model += [(first + i, self.term, body) for i, body in enumerate(bodies)]

    @rule()
    def new_term(self) -> None:
        self.term += 1
        append_batch(self.store, EntryBatch.noop(), self.term, control=True)
        self.model.append((len(self.model), self.term, b""))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        cut = data.draw(st.integers(0, len(self.model)))
        self.store.truncate_from(cut)
        if cut < len(self.model):
            self.term += 1
        del self.model[cut:]
        self.durable = min(self.durable, cut)
        self.task_covers = min(self.task_covers, cut)

    @precondition(lambda self: self.task is None)
    @rule()
    def begin_sync(self) -> None:
        self.task = self.store.begin_sync()
        assert self.task is not None or self.durable == len(self.model)
        self.task_covers = len(self.model)

    @precondition(lambda self: self.task is not None)
    @rule()
    def finish_sync(self) -> None:
        assert self.task is not None
        self.task.run()
        self.store.finish_sync(self.task)
        self.task = None
        self.durable = max(self.durable, self.task_covers)

    @rule()
    def want_space(self) -> None:
        self.space = self.store.space_ahead()

    @precondition(lambda self: self.space is not None)
    @rule()
    def make_space(self) -> None:
        """Wanted some time ago; in between more may have been reserved, or less be left."""
        assert self.space is not None
        self.space()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), limit_bytes=st.integers(1, 2000))
    def take_range(self, data: st.DataObject, limit_bytes: int) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        stop = data.draw(st.integers(first + 1, len(self.model) + 3))
        taken = self.store.range_of(first, stop, limit_bytes)
        assert first < taken.stop_index <= min(stop, len(self.model))
        assert taken.size_bytes <= limit_bytes or len(taken.sizes) == 1
        self.ranges.append((taken, self.model[first : taken.stop_index]))

    @precondition(lambda self: self.ranges)
    @rule()
    def read_range(self) -> None:
        """Taken some time ago; in between its entries may have been truncated and written anew."""
        log_range, expected = self.ranges.pop(0)
        held = self.model[log_range.first_index : log_range.stop_index]
        try:
            batch = self.store.read(log_range)
        except IndexOutOfRange:
            assert held != expected
            return
        assert held == expected
        batch.check_bodies()
        assert [bytes(body) for body in batch.bodies()] == [body for _, _, body in expected]

    @precondition(lambda self: self.task is None)
    @rule()
    def reopen(self) -> None:
        self.ranges.clear()
        self.open_again()

    def open_again(self) -> None:
        self.store.close()
        self.store, report = open_store(self.path, CONFIG, self.disk)
        assert report.lines == ()
        self.durable = len(self.model)

    @invariant()
    def ends_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        last = self.model[-1] if self.model else (-1, -1, b"")
        assert (self.store.end.index, self.store.end.term) == last[:2]
        assert self.store.durable.index == self.durable - 1
        for index in {0, len(self.model) // 2, len(self.model) - 1} & set(range(len(self.model))):
            assert self.store.id_at(index).term == self.model[index][1]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert read_log(self.store) == self.model
            runs = [(i, t) for i, t, _ in self.model if i == 0 or self.model[i - 1][1] != t]
            assert self.store.term_runs() == tuple(runs)
            self.store.close()


class MemoryMachine(LedgerStoreMachine):
    """A disk in memory, so that thousands of starts cost nothing."""

    @initialize()
    def make(self) -> None:
        self.disk = MemoryDisk()
        self.path = "m"
        self.store = new_store(self.path, CONFIG, self.disk)


class RealDiskMachine(LedgerStoreMachine):
    @initialize()
    def make(self) -> None:
        self.disk = OsDisk()
        self.path = tempfile.mkdtemp(prefix="quorumlog-model-")
        self.store = new_store(self.path, CONFIG, self.disk)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "path"):
            shutil.rmtree(self.path)


_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
MANY = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=_CHECKS)
FEW = settings(max_examples=5, stateful_step_count=20, deadline=None, suppress_health_check=_CHECKS)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = MANY
TestRealDisk = RealDiskMachine.TestCase
TestRealDisk.settings = FEW
