"""Consumer groups and delays in virtual time; `make sim-groups` runs many more seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim.groups.group_run import run_groups


def groups_keep_their_promises(seeds: Sequence[int] = range(1, 17)) -> None:
    for seed in seeds:
        failure = run_groups(seed).failure
        assert not failure, f"seed {seed}: {failure}"


def test_groups_keep_their_promises_where_members_fail() -> None:
    counts: Counter[str] = Counter()
    for seed in (2, 4):
        result = run_groups(seed, faults_ms=3_000)
        assert not result.failure, result.failure
        counts += result.counts
    for what in ("sent", "assigned", "committed", "asked"):
        assert counts[f"groups: {what}"], what
