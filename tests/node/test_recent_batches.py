"""The newest entries in memory stay one contiguous range, whatever is cut and appended."""

from __future__ import annotations

import tracemalloc

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.node.sending import RecentBatches


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


def test_who_takes_the_same_range_shares_it_until_something_changes() -> None:
    recent = RecentBatches(1 << 20)
    recent.add(stamped(0, 1, b"0", b"1"), 0)
    recent.add(stamped(2, 1, b"2", b"3"), 0)
    first, second = recent.take(1, 4, 1 << 20), recent.take(1, 4, 1 << 20)
    assert first is not None and second is not None
    assert first.batch is second.batch
    recent.truncate_from(3)
    recent.add(stamped(3, 2, b"new"), 0)
    after = recent.take(1, 4, 1 << 20)
    assert after is not None
    assert list(map(bytes, after.batch.bodies())) == [b"1", b"2", b"new"]
    assert list(map(bytes, first.batch.bodies())) == [b"1", b"2", b"3"]  # on its way to somebody
    fewer = recent.take(1, 3, 1 << 20)
    assert fewer is not None and fewer.batch.count == 2


def test_the_limit_is_one_of_memory_also_for_a_lone_writer_of_small_entries() -> None:
    limit_bytes = 1 << 20
    recent = RecentBatches(limit_bytes)
    tracemalloc.start()
    try:
        for index in range(5_000):
            batch = stamped(index, 1, b"small")
            assert batch.first_header.index == index and batch.chain_before == 0  # kept, as a node does
            recent.add(batch, 0)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert limit_bytes // 4 < held_bytes <= 1.25 * limit_bytes
