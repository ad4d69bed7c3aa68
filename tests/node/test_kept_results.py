"""Results that are kept for sessions: of which entries they are, whatever happened in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability
from quorumlog.log_state.control_entries import OpenProducer, ProducerBatch, ProducerEpoch
from quorumlog.node.kept_results import KeptResults
from tests.node.machines import Disk, Lasting
from tests.node.test_state_machines import SAVING, Group, restarted


def stretch(first_index: int, count: int) -> EntryBatch:
    """Of the log, all of term 1."""
    batch = EntryBatch.from_bodies([b"x"] * count)
    batch.stamp(first_index, 1, np.zeros(count, np.int64), 0)
    return batch


def took(kept: KeptResults, first_index: int, count: int, *, begins: bool) -> None:
    """A stretch of a batch of twelve entries of producer p, the first at 11, was applied."""
    begun = [(0, ProducerBatch("p", ProducerEpoch(1, 1), 0, 12))] if begins else []
    batches = kept.batches_in(stretch(first_index, count), begun)
    skip = 1 if begins else 0
    indices = np.arange(first_index + skip, first_index + count)
    kept.note(batches, indices, [b"of %d" % index for index in indices])


def receipt(first_index: int, count: int) -> AppendReceipt:
    return AppendReceipt(1, first_index, count, Durability.SYNC)


def test_a_batch_that_comes_in_two_stretches_has_its_results() -> None:
    kept = KeptResults()
    took(kept, 10, 5, begins=True)
    kept = KeptResults(kept.encode())
    took(kept, 15, 8, begins=False)
    found = kept.results_of("p", receipt(11, 12))
    assert found is not None
    assert found.results == tuple(b"of %d" % index for index in range(11, 23))


def test_results_behind_a_gap_are_never_those_of_other_entries() -> None:
    """Entries 15 to 18 were applied by a process that is gone, and what it gave with it."""
    kept = KeptResults()
    took(kept, 10, 5, begins=True)
    kept = KeptResults(kept.encode())
    kept.skip()
    took(kept, 19, 4, begins=False)
    for index in range(11, 23):
        found = kept.results_of("p", receipt(index, 1))
        assert found is None or found.results == (b"of %d" % index,), index
    assert kept.results_of("p", receipt(11, 4)) is not None


def test_an_open_that_the_log_ignores_gives_nobody_a_result_of_others() -> None:
    """It names an epoch that does not stand."""
    kept = KeptResults()
    took(kept, 10, 13, begins=True)
    kept.forget(OpenProducer("q", bytes(16), ends=ProducerEpoch(99, 9), evicts=("p",)))
    assert kept.results_of("p", receipt(11, 12)) is None, "unknown, and nothing else"
    assert kept.results_of("q", receipt(11, 12)) is None


def test_a_machine_with_a_disk_of_its_own_has_results_of_before_a_restart(tmp_path: Path) -> None:
    disk = Disk()
    group = Group(tmp_path, lambda: Lasting(disk), members=1, storage=SAVING)
    group.append(*[b"a"] * 12)
    group.settle()
    group.cell.until(lambda: list((tmp_path / "n0" / "snapshots").iterdir()))
    ((_, _, runner),) = group.cell.nodes["n0"].machines.at_rest()
    runner._kept = KeptResults()
    took(runner._kept, 10, 13, begins=True)
    group.append(*[b"b"] * 12)
    group.settle()
    group.cell.step()
    restarted(group, "n0")
    group.settle()
    ((_, _, runner),) = group.cell.nodes["n0"].machines.at_rest()
    assert runner.results_of("p", receipt(11, 12)) is not None
    group.cell.close()
