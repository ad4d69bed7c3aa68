"""Consumer groups and delays in virtual time; `make sim-groups` runs many more seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quorumlog.broker.groups.simulated.group_run import run_groups


def groups_keep_their_promises(seeds: Sequence[int] = range(1, 9)) -> None:
    for seed in seeds:
        failure = run_groups(seed).failure
        assert not failure, f"seed {seed}: {failure}"


@pytest.mark.parametrize("seed", [2, 4])
def test_groups_keep_their_promises_where_members_fail(seed: int) -> None:
    result = run_groups(seed, faults_ms=3_000)
    assert not result.failure, result.failure
    for what in ("sent", "assigned", "committed", "asked"):
        assert result.counts[f"groups: {what}"], what
