"""One contract, the LedgerStore on a disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryId
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BodyTooLarge, IndexOutOfRange
from quorumlog.store.disk import OsDisk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LOG_ORIGIN
from quorumlog.store.memory_disk import MemoryDisk
from tests.store.log_making import (
    SMALL,
    append_batch,
    append_bodies,
    append_noop,
    append_numbered,
    body,
    new_store,
    numbered,
    read_log,
    sizes_of,
    sync,
)


@pytest.fixture(params=[MemoryDisk, OsDisk])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerStore]:
    made = new_store(str(tmp_path / "m"), disk=request.param())
    yield made
    made.close()


def test_a_new_log_is_empty(store: LedgerStore) -> None:
    assert store.begin == store.end == store.durable == LOG_ORIGIN
    assert store.term_runs() == ()
    assert store.begin_sync() is None
    assert store.id_at(-1) == EntryId(-1, -1)
    assert store.chain_at(-1) == 0
    with pytest.raises(IndexOutOfRange):
        store.range_of(0, 1, 1000)


def test_what_was_appended_is_read(store: LedgerStore) -> None:
    append_numbered(store, 3)
    append_numbered(store, 1)
    append_noop(store, 2)
    append_numbered(store, 6, term=2)
    expected = [*numbered(4), (4, 2, b""), *numbered(6, term=2, first=5)]
    assert read_log(store) == expected
    assert read_log(store, limit_bytes=1) == expected
    assert store.end.entry_id == EntryId(10, 2)
    assert store.term_runs() == ((0, 1), (4, 2))
    assert store.id_at(3) == EntryId(3, 1)
    assert store.chain_at(10) == store.end.chain


def test_an_empty_batch_changes_nothing(store: LedgerStore) -> None:
    append_numbered(store, 1)
    end = store.end
    nothing = EntryBatch(b"", [])
    assert len(store.plan(nothing.sizes)) == 0
    store.append(nothing)
    assert store.end == end


def test_positions_follow_the_rolling_rule(store: LedgerStore) -> None:
    """docs/formats.md, section 1.3: size + 8 must fit into what is left of the segment."""
    exact = SMALL.segment_bytes - 8 - HEADER_BYTES
    assert store.plan(sizes_of([bytes(exact)])).tolist() == [0]
    assert store.plan(sizes_of([bytes(exact - HEADER_BYTES), b""])).tolist() == [0, exact]
    assert store.plan(sizes_of([bytes(exact - HEADER_BYTES + 1), b""])).tolist() == [0, 1024]
    positions = store.plan(sizes_of([bytes(200)] * 10)).tolist()
    assert positions == [0, 248, 496, 744, 1024, 1272, 1520, 1768, 2048, 2296]


def test_one_batch_over_many_segments(store: LedgerStore) -> None:
    append_numbered(store, 2)
    append_numbered(store, 30)
    append_numbered(store, 1, size=976 - HEADER_BYTES)
    append_numbered(store, 1, size=0)
    log = read_log(store)
    assert [entry[0] for entry in log] == list(range(34))
    assert log[:32] == numbered(32)
    for index in range(34):
        log_range = store.range_of(index, 34, 10_000)
        assert log_range.position // 1024 * 1024 == log_range.segment_position
        assert log_range.position + log_range.size_bytes <= log_range.segment_position + 1024 - 8
        assert log_range.previous.entry_id == store.id_at(index - 1)
        assert log_range.previous.chain == store.chain_at(index - 1)


def test_too_large_is_refused_and_leaves_everything(store: LedgerStore) -> None:
    append_numbered(store, 1)
    end = store.end
    largest = SMALL.segment_bytes - 8
    with pytest.raises(BodyTooLarge, match=str(largest)):
        store.plan(np.array([100, largest + 1]))
    assert store.end == end
    append_bodies(store, [bytes(largest - HEADER_BYTES)])
    assert store.end.position == 1024 + largest


def test_range_limits(store: LedgerStore) -> None:
    append_numbered(store, 4)
    assert len(store.range_of(0, 4, 1).sizes) == 1
    assert len(store.range_of(0, 4, 2 * 248).sizes) == 2
    assert len(store.range_of(0, 4, 3 * 248 - 1).sizes) == 2
    assert len(store.range_of(0, 2, 10_000).sizes) == 2
    assert store.range_of(1, 100, 10_000).stop_index == 4
    with pytest.raises(IndexOutOfRange, match=r"0 \.\. 3"):
        store.range_of(4, 5, 1000)


def test_durable_follows_the_flush(store: LedgerStore) -> None:
    append_numbered(store, 2)
    task = store.begin_sync()
    assert task is not None
    middle = store.end
    assert task.end == middle
    append_numbered(store, 1)
    task.run()
    assert store.durable == LOG_ORIGIN
    store.finish_sync(task)
    assert store.durable == middle
    sync(store)
    assert store.durable == store.end
    assert store.begin_sync() is None


def test_truncate_and_go_on(store: LedgerStore) -> None:
    append_numbered(store, 12)
    sync(store)
    cut_chain = store.chain_at(4)
    store.truncate_from(5)
    assert store.end.entry_id == EntryId(4, 1)
    assert store.end.chain == cut_chain
    assert store.durable == store.end
    assert read_log(store) == numbered(5)
    append_numbered(store, 9, term=3, size=77)
    assert read_log(store) == numbered(5) + numbered(9, term=3, size=77, first=5)
    assert store.term_runs() == ((0, 1), (5, 3))
    store.truncate_from(0)
    assert store.end == store.durable == LOG_ORIGIN
    assert store.term_runs() == ()
    append_numbered(store, 1, term=4)
    assert read_log(store) == numbered(1, term=4)


def test_truncate_behind_the_end_is_nothing(store: LedgerStore) -> None:
    append_numbered(store, 2)
    store.truncate_from(2)
    assert store.end.index == 1
    with pytest.raises(AssertionError):
        store.truncate_from(3)


@pytest.mark.parametrize("ran_before", [True, False])
def test_a_flush_reports_no_more_than_a_later_truncation_left(
    store: LedgerStore, ran_before: bool
) -> None:
    append_numbered(store, 3)
    sync(store)
    append_numbered(store, 7)
    task = store.begin_sync()
    assert task is not None
    if ran_before:
        task.run()
    store.truncate_from(5)
    append_numbered(store, 7, term=2)
    if not ran_before:
        task.run()
    store.finish_sync(task)
    assert store.durable.entry_id == EntryId(4, 1)
    sync(store)
    assert store.durable == store.end


def test_a_flush_below_a_truncation_below_it(store: LedgerStore) -> None:
    append_numbered(store, 9)
    sync(store)
    append_numbered(store, 1)
    task = store.begin_sync()
    assert task is not None
    store.truncate_from(6)
    store.truncate_from(3)
    append_numbered(store, 5, term=2)
    store.truncate_from(4)
    task.run()
    store.finish_sync(task)
    assert store.durable.entry_id == EntryId(2, 1)


def test_a_range_that_was_truncated_is_out_of_range(store: LedgerStore) -> None:
    append_numbered(store, 8)
    whole = store.range_of(4, 8, 10_000)
    store.truncate_from(6)
    with pytest.raises(IndexOutOfRange, match="truncated meanwhile"):
        store.read(whole)
    append_numbered(store, 2, term=2)
    with pytest.raises(IndexOutOfRange, match="truncated meanwhile"):
        store.read(whole)
    store.truncate_from(0)
    with pytest.raises(IndexOutOfRange, match="truncated meanwhile"):
        store.read(whole)


def test_what_does_not_continue_the_log_is_a_bug_of_ours(store: LedgerStore) -> None:
    append_numbered(store, 2)
    end = store.end

    def stamped(index: int, term: int, chain: int, shift: int = 0) -> EntryBatch:
        batch = EntryBatch.from_bodies([b"x"])
        batch.stamp(index, term, store.plan(batch.sizes) + shift, chain)
        return batch

    for wrong in (
        stamped(3, 1, end.chain),
        stamped(2, 0, end.chain),
        stamped(2, 1, end.chain + 1),
        stamped(2, 1, end.chain, shift=8),
    ):
        store.plan(wrong.sizes)
        with pytest.raises(AssertionError):
            store.append(wrong)
    with pytest.raises(AssertionError):
        store.append(stamped(2, 1, end.chain))
        store.append(stamped(2, 1, end.chain))
    assert store.end.index == 2


def test_followers_batch_is_taken_as_it_is(store: LedgerStore) -> None:
    """The bytes a leader wrote continue the same log of another member."""
    leader = new_store("leader", disk=MemoryDisk())
    append_numbered(leader, 20)
    append_noop(leader, 2)
    index = 0
    while index <= leader.end.index:
        log_range = leader.range_of(index, leader.end.index + 1, 600)
        batch = leader.read(log_range)
        batch.check_sequence(index, store.end.chain)
        assert store.plan(batch.sizes).tolist() == batch.headers()["pos"].tolist()
        store.append(batch)
        index = log_range.stop_index
    assert store.end == leader.end
    assert read_log(store) == read_log(leader)


@pytest.mark.usefixtures("no_syncs")
def test_many_small_entries(store: LedgerStore) -> None:
    for _ in range(3):
        append_bodies(store, [b""] * 1000)
    append_batch(store, EntryBatch.from_bodies([body(3000)]), 1)
    assert len(read_log(store)) == 3001
    assert store.range_of(1500, 3001, 1 << 20).first_index == 1500
