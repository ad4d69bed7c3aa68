"""Clients of etcd in virtual time; `make sim-etcd` runs many more seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim.etcd.etcd_run import run_etcd


def etcd_keeps_its_promises(seeds: Sequence[int] = range(1, 13)) -> None:
    for seed in seeds:
        failure = run_etcd(seed).failure
        assert not failure, f"seed {seed}: {failure}"


def test_clients_of_etcd_see_one_store_where_members_fail() -> None:
    counts: Counter[str] = Counter()
    for seed in (1, 5, 6):
        result = run_etcd(seed)
        assert not result.failure, f"seed {seed}: {result.failure}"
        counts.update(result.counts)
    for what in ("KV/Txn", "KV/Compact", "Lease/LeaseKeepAlive", "watched", "watch lost", "fragment"):
        assert counts[f"etcd: {what}"], what


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (run_etcd(7, faults_ms=1_500) for _ in range(2))
    assert not first.failure, first.failure
    assert first.trace_hash == second.trace_hash
