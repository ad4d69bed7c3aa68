"""The newest entries in memory stay one contiguous range, whatever is cut and appended."""

from __future__ import annotations

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.node.recent_batches import RecentBatches


def stamped(first_index: int, term: int, *bodies: bytes) -> EntryBatch:
    batch = EntryBatch.from_bodies(bodies)
    batch.stamp(first_index, term, [0] * batch.count, 0)
    return batch


@pytest.mark.parametrize("cut", range(3, 8))
def test_what_comes_after_a_cut_inside_a_batch_continues_what_was_kept(cut: int) -> None:
    recent = RecentBatches(1 << 20)
    recent.add(stamped(0, 1, b"0", b"1", b"2"), 0)
    recent.add(stamped(3, 1, b"3", b"4", b"5", b"6"), 0)
    recent.truncate_from(cut)
    recent.add(stamped(cut, 2, b"new"), 0)
    found = recent.take(0, 100, 1 << 20)
    assert found is not None
    assert list(map(bytes, found.batch.bodies())) == [b"%d" % i for i in range(cut)] + [b"new"]


def test_everything_may_be_cut() -> None:
    recent = RecentBatches(1 << 20)
    recent.add(stamped(5, 1, b"5", b"6"), 0)
    recent.truncate_from(5)
    assert recent.take(5, 7, 1 << 20) is None
    recent.add(stamped(5, 2, b"new"), 0)
    assert recent.stop_index == 6
