"""Short random runs of a group (see random_run.py): faults first, safety all the time, peace after.

A seed that ever failed is kept in `REGRESSIONS` with what it found.
"""

import pytest

from .random_run import AsyncRun, DamagedRun, RandomRun

REGRESSIONS: dict[int, str] = {
    60: "a candidate wins a term late, after a higher one has committed: no violation",
    73: "figure 8, if entries of older terms were committed by counting",
    39: "acknowledged entries lost, if TRUNCATE cut what agrees",
}


@pytest.mark.parametrize("seed", [*REGRESSIONS, *range(1000, 1020)])
def test_random_run(seed: int) -> None:
    run = RandomRun(seed)
    run.carry_out()  # asserts all the time
    assert run.committed


def test_async_runs_become_one_log_again() -> None:
    runs = [AsyncRun(seed) for seed in range(10, 20)]
    for run in runs:
        run.carry_out()  # asserts at its end
    assert sum(len(run.leaders) for run in runs) > 30
    assert any(run.losses for run in runs), "somebody must have lost something"


def test_runs_with_damaged_disks_stay_safe_and_end_as_one_log() -> None:
    runs = [DamagedRun(seed) for seed in range(10)]
    for run in runs:
        run.carry_out()  # asserts all the time
        assert run.committed
    assert sum(run.repaired for run in runs) > 15


def test_runs_meet_what_they_are_for() -> None:
    """A run in which nothing happens proves nothing."""
    runs = [RandomRun(seed) for seed in range(8)]
    for run in runs:
        run.carry_out()
    assert sum(len(run.leaders) for run in runs) > 30
    assert sum(run.grants for run in runs) > 400
    assert sum(run.truncations for run in runs) > 2
    assert any(run.retired for run in runs)
