"""What of a log the operating system keeps in memory, asked of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.config import MIB, StoreConfig
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_reader import STEP_BYTES
from tests.store.log_making import append_bodies, body, new_store, sync
from tests.store.residency import PAGE, is_cached, skip_unless_it_forgets

KEPT = 8 * MIB
CONFIG = StoreConfig(
    segment_bytes=16 * MIB, index_segment_bytes=MIB, page_cache_bytes=KEPT, disk_full_ratio=1.0
)


@pytest.fixture(autouse=True)
def a_disk_that_can_forget(tmp_path: Path) -> None:
    skip_unless_it_forgets(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    store = new_store(str(tmp_path / "log"), CONFIG)
    yield store
    store.close()


def append(store: LedgerStore, mebibytes: int) -> None:
    for _ in range(mebibytes):
        append_bodies(store, [body(number, size=PAGE - 48) for number in range(256)])
        sync(store)
        outgrown = store.outgrown_cache()
        if outgrown is not None:
            outgrown()


def is_held(store: LedgerStore, position: int) -> bool:
    file = store._data.file_at(position)
    assert file is not None
    return is_cached(Path(file.path), position - file.base_position)


def test_only_the_newest_bytes_stay_in_memory(store: LedgerStore) -> None:
    append(store, 30)
    end = store.end.position
    held = [is_held(store, position) for position in range(0, end, MIB)]
    assert not any(held[: (end - KEPT) // STEP_BYTES * STEP_BYTES // MIB])
    assert all(held[(end - KEPT) // MIB + 1 :])


def test_what_is_not_synced_stays_whatever_its_size(store: LedgerStore) -> None:
    for _ in range(12):
        append_bodies(store, [body(number, size=PAGE - 48) for number in range(256)])
        assert store.outgrown_cache() is None
    assert is_held(store, 0)


def test_entries_read_once_leave_no_trace_and_those_that_clients_read_do(store: LedgerStore) -> None:
    append(store, 30)
    log_range = store.range_of(100, 400, MIB)
    middle = log_range.position + log_range.size_bytes // 2
    assert store.read_from(100, 400, MIB, once=True)[1].count == 256
    assert not is_held(store, middle)
    assert store.read(log_range).count == 256
    assert is_held(store, middle)


def test_reading_the_newest_entries_once_leaves_them_in_memory(store: LedgerStore) -> None:
    append(store, 30)
    log_range = store.range_of(store.end.index - 300, store.end.index, MIB)
    store.read_from(store.end.index - 300, store.end.index, MIB, once=True)
    assert is_held(store, log_range.position + log_range.size_bytes // 2)


def test_a_scrub_leaves_no_trace(store: LedgerStore) -> None:
    append(store, 30)
    store.examine(100, 2000)
    assert not is_held(store, store.range_of(1000, 1001, MIB).position)


def test_entries_written_anew_behind_a_deep_cut_are_given_back_in_their_turn(
    store: LedgerStore,
) -> None:
    append(store, 30)
    store.truncate_from(1000)
    append(store, 30)
    position = store.range_of(1500, 1501, MIB).position
    assert not is_held(store, position)
    assert is_held(store, store.end.position - MIB)
