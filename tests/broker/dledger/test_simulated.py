"""Brokers on a replicated log in virtual time; `make sim-broker` runs many more seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quorumlog.broker.simulated.broker_run import run_brokers


def brokers_keep_their_promises(seeds: Sequence[int] = range(1, 9)) -> None:
    for seed in seeds:
        failure = run_brokers(seed).failure
        assert not failure, f"seed {seed}: {failure}"


@pytest.mark.parametrize("seed", [1, 3])
def test_brokers_keep_their_promises_where_members_fail(seed: int) -> None:
    result = run_brokers(seed, faults_ms=3_000)
    assert not result.failure, result.failure
    for what in ("acknowledged", "became master", "pulled"):
        assert result.counts[f"broker: {what}"], what


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (run_brokers(5, faults_ms=500) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert not first.failure, first.failure
