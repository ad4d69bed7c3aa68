"""Clients of Kafka in virtual time; `make sim-kafka` runs many more seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim.kafka.kafka_run import run_kafka


def kafka_keeps_its_promises(seeds: Sequence[int] = range(1, 13)) -> None:
    for seed in seeds:
        failure = run_kafka(seed).failure
        assert not failure, f"seed {seed}: {failure}"


def test_nothing_is_lost_repeated_or_out_of_order_where_members_fail() -> None:
    counts: Counter[str] = Counter()
    for seed in (1, 2, 3):
        result = run_kafka(seed)
        assert not result.failure, f"seed {seed}: {result.failure}"
        counts.update(result.counts)
    for what in ("produced", "produced again", "joined", "committed", "consumer killed"):
        assert counts[f"kafka: {what}"], what


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (run_kafka(5, faults_ms=2_000) for _ in range(2))
    assert not first.failure, first.failure
    assert first.trace_hash == second.trace_hash
