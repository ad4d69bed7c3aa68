"""How far behind an index is, in bytes: beside a twin that remembers every batch."""

from __future__ import annotations

import random

import pytest

from quorumlog.consensus.replication import _STEPS, LogBytes


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_a_list_of_all_batches_says_to_within_a_step(seed: int) -> None:
    rng = random.Random(seed)
    limit_bytes = rng.choice((1, 100, 6_400, 64 << 20))
    sizes = LogBytes(limit_bytes)
    first_end = end_index = rng.randrange(100)
    sizes.begin(end_index)
    entries: list[int] = []
    for _ in range(500):
        count, entry_bytes = rng.randint(1, 20), rng.choice((0, 48, 1000, limit_bytes // 10))
        end_index += count
        sizes.append(end_index, count * entry_bytes)
        entries += [entry_bytes] * count
    batch_bytes = 20 * max(entries)
    for index in rng.choices(range(first_end, end_index + 1), k=200):
        behind_bytes = sum(entries[index - first_end :])
        told = sizes.behind(index)
        if told is None:
            assert behind_bytes + batch_bytes + limit_bytes // _STEPS > limit_bytes
        else:
            assert behind_bytes <= told <= behind_bytes + batch_bytes + limit_bytes // _STEPS
            assert told <= limit_bytes
    assert sizes.behind(end_index) == 0
    assert sizes.behind(first_end - 1) is None


def test_it_stays_small_however_many_batches_come() -> None:
    sizes = LogBytes(1 << 20)
    sizes.begin(-1)
    for index in range(100_000):
        sizes.append(index, 100)
    assert len(sizes._ends) <= 2 * _STEPS + 2


def test_entries_of_older_terms_have_no_size() -> None:
    sizes = LogBytes(1000)
    sizes.begin(7)
    sizes.append(8, 10)
    assert sizes.behind(7) == 10
    assert sizes.behind(6) is None
    sizes.begin(8)
    assert sizes.behind(7) is None
    assert sizes.behind(8) == 0
