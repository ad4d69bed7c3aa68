"""Masters, slaves, operators and registers under everything that goes wrong; `make sim-replicas` runs
many more schedules."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from sim.replicas.schedule import KINDS, play, run

SEEDS = int(os.environ.get("QUORUMLOG_HA_SEEDS", "24"))
"""Of each kind, with two to five brokers."""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_and_the_living_go_on(kind: str) -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        ran = run(seed, [kind])
        assert not ran.failure, ran.failure
        counts += ran.counts
    assert counts["replicas: acknowledged"] > 5 * SEEDS
    assert counts["replicas: runs of a leader"] > 2 * SEEDS


def test_a_seed_is_the_same_schedule_each_time() -> None:
    for register in KINDS.values():
        one, other = play(7, 3, register), play(7, 3, register)
        assert (one.story, one.promises.confirmed) == (other.story, other.promises.confirmed)


@pytest.mark.parametrize(
    "seed",
    [
        40006675,  # the log is lost with the power, and what is known of queues is of another one
        50005033,  # a crash in the middle of retention, with messages that are not confirmed yet
    ],
)
def test_a_queue_is_what_the_log_says_whatever_was_known_of_it(seed: int) -> None:
    ran = run(seed)
    assert not ran.failure, ran.failure
