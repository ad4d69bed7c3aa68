from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from quorumlog.spark.options import IndexRange
from quorumlog.spark.partitions import EntryPoint, LedgerPartition, Readers, plan, with_chains


def planned(
    first_index: int,
    stop_index: int,
    position_of: Callable[[int], int] = lambda index: index * 100,
    *,
    least: int = 1,
    size: int = 2**62,
    records: int = 0,
    readers: Readers = Readers(),  # noqa: B008
) -> list[LedgerPartition]:
    partitions = plan(
        "g",
        IndexRange(first_index, stop_index),
        lambda indices: [EntryPoint(position_of(index), 7 * index) for index in indices],
        begin_index=0,
        min_partitions=least,
        partition_bytes=size,
        max_records=records,
        readers=readers,
    )
    if partitions:
        assert partitions[0].first_index == first_index
        assert partitions[-1].stop_index == stop_index
    assert all(left.stop_index == right.first_index for left, right in pairwise(partitions))
    assert all(left.last_chain == right.previous_chain for left, right in pairwise(partitions))
    assert all(partition.count > 0 for partition in partitions)
    return partitions


def test_nothing_to_read_is_no_partition() -> None:
    assert planned(7, 7) == []


def test_a_small_range_is_one_partition() -> None:
    assert planned(7, 8) == [LedgerPartition("g", 7, 8, (), 42, 49)]
    assert planned(0, 1000) == [LedgerPartition("g", 0, 1000, (), 0, 6993)]


def test_what_precedes_the_begin_of_the_log_is_not_asked_for() -> None:
    asked: list[int] = []

    def points_of(indices: Sequence[int]) -> list[EntryPoint]:
        asked.extend(indices)
        return [EntryPoint(index * 100, 7 * index) for index in indices]

    ranges = plan(
        "g", IndexRange(50, 60), points_of, begin_index=50, min_partitions=2, partition_bytes=2**62
    )
    assert [(p.previous_chain, p.last_chain) for p in ranges] == [(None, 378), (378, 413)]
    assert min(asked) == 50


def test_partitions_have_about_the_bytes_asked_for() -> None:
    partitions = planned(1000, 11_000, size=100_000)
    assert len(partitions) == 10
    assert all(995 <= partition.count <= 1005 for partition in partitions)


def test_entries_of_unequal_size_give_partitions_of_equal_bytes() -> None:
    def position_of(index: int) -> int:
        return index * 100 if index < 5000 else 500_000 + (index - 5000) * 1900

    partitions = planned(0, 10_000, position_of, size=1_000_000)
    sizes = [position_of(p.stop_index) - position_of(p.first_index) for p in partitions]
    assert len(partitions) == 10
    assert max(sizes) < 1.2 * min(sizes)


def test_at_least_as_many_as_asked_for_but_never_an_empty_one() -> None:
    assert len(planned(0, 1000, least=7)) == 7
    assert [p.count for p in planned(5, 8, least=100)] == [1, 1, 1]


def test_as_many_as_asked_for_also_where_one_entry_is_larger_than_a_share() -> None:
    def position_of(index: int) -> int:
        return index * 100 if index <= 500 else index * 100 + 10_000_000

    assert len(planned(0, 1000, position_of, least=600)) == 600
    assert max(p.count for p in planned(0, 1000, position_of, least=600)) <= 4


def test_tiny_partition_bytes_end_at_one_entry_each() -> None:
    assert len(planned(0, 50, size=1)) == 50


def test_no_partition_has_more_records_than_allowed() -> None:
    def position_of(index: int) -> int:
        return index if index < 9000 else 9000 + (index - 9000) * 1000

    counts = [p.count for p in planned(0, 10_000, position_of, least=3, records=700)]
    assert max(counts) <= 700
    assert len(counts) <= 2 * 15


def test_positions_are_asked_for_a_bounded_number_of_times() -> None:
    asked = []

    def position_of(index: int) -> int:
        asked.append(index)
        return index * 1000

    partitions = planned(0, 10_000_000, position_of, size=2**30)
    assert len(asked) <= 64 + len(partitions)
    assert 0 in asked
    assert 9_999_999 in asked


@pytest.mark.parametrize(("partition_bytes", "most"), [(2**62, 3), (50_000_000, 20), (1_000_000, 260)])
def test_each_entry_is_asked_for_once_and_few_where_parts_are_few(
    partition_bytes: int, most: int
) -> None:
    asked: list[int] = []

    def points_of(indices: Sequence[int]) -> list[EntryPoint]:
        asked.extend(indices)
        return [EntryPoint(1_000 * index, index) for index in indices]

    plan(
        "g",
        IndexRange(1, 100_000),
        points_of,
        begin_index=0,
        min_partitions=1,
        partition_bytes=partition_bytes,
    )
    assert len(set(asked)) == len(asked) <= most
    assert {0, 1, 99_999} <= set(asked)


def test_of_very_many_partitions_the_tasks_ask_for_their_chains() -> None:
    asked: list[int] = []

    def points_of(indices: Sequence[int]) -> list[EntryPoint]:
        asked.extend(indices)
        return [EntryPoint(index, 7 * index) for index in indices]

    partitions = plan(
        "g",
        IndexRange(0, 10**6),
        points_of,
        begin_index=0,
        min_partitions=20_000,
        partition_bytes=2**62,
    )
    assert len(partitions) == 20_000
    assert len(asked) < 100
    assert (partitions[0].previous_chain, partitions[-1].last_chain) == (0, 7 * 999_999)
    first, second, *_ = (with_chains(each, points_of) for each in partitions)
    assert first.last_chain == second.previous_chain == 7 * (second.first_index - 1)
    assert with_chains(second, points_of) == second


def test_partitions_prefer_the_members_in_turn_and_may_use_them_all() -> None:
    partitions = planned(0, 100, least=4, readers=Readers(("n1", "n2", "n3"), ("n0",)))
    assert [p.members[0] for p in partitions] == ["n1", "n2", "n3", "n1"]
    assert all(sorted(p.members[:3]) == ["n1", "n2", "n3"] for p in partitions)
    assert all(p.members[3] == "n0" for p in partitions)


@pytest.mark.parametrize("partition", [LedgerPartition("g", 1, 2), LedgerPartition("g", 1, 2, ("n0",))])
def test_a_partition_travels_to_a_worker(partition: LedgerPartition) -> None:
    assert pickle.loads(pickle.dumps(partition)) == partition


@pytest.mark.parametrize(("mib", "cores"), [(1, 1), (8, 2), (12, 3), (400, 4)])
def test_a_small_log_is_cut_for_the_cores_where_that_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, mib: int, cores: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def points_of(indices: Sequence[int]) -> list[EntryPoint]:
        return [EntryPoint(index << 10, 0) for index in indices]

    partitions = plan(
        "g",
        IndexRange(0, mib << 10),
        points_of,
        begin_index=0,
        min_partitions=0,
        partition_bytes=128 << 20,
    )
    assert len(partitions) == cores
