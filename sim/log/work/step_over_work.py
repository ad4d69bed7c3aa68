"""StepOverWork: somebody who has the state machine leave commands out, which have harmed nobody."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorumlog.errors import LedgerError
from quorumlog.node.step_overs import StepOverOutcome
from quorumlog.testing.machines import DIGEST_NAME

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster

SHARE = 0.3
"""Of the runs with state machines."""
EVERY_MS = 900.0
NEAR = 60
"""Most of them are among so many of the newest entries."""


class StepOverWork:
    def __init__(self, cluster: SimCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        profile = cluster.profile
        # Async mode may take the order back, and the results that it has changed.
        self._is_wanted = random.random() < SHARE and profile.runs_machines and not profile.is_async

    def begin(self) -> None:
        if self._is_wanted:
            self._again()

    def _again(self) -> None:
        self._cluster.at(self._random.expovariate(1 / EVERY_MS), self._ask)

    def _ask(self) -> None:
        cluster = self._cluster
        if not cluster.is_faulty:
            return
        self._again()
        leading = cluster.leading()
        if not leading:
            return
        leader = self._random.choice(leading)
        end_index = leader.node.committed_index
        near = self._random.random() < 0.8
        index = self._random.randint(max(0, end_index - NEAR) if near else 0, max(0, end_index))
        unsafe = self._random.random() < 0.7

        def done(outcome: StepOverOutcome) -> None:
            how = type(outcome).__name__ if isinstance(outcome, LedgerError) else "done"
            cluster.trace.count(f"step over: {how}")

        def ask() -> None:
            cluster.operations.stepped_over.add(index)
            leader.node.machines.step_overs.request(DIGEST_NAME, index, unsafe, done)

        leader.enter(ask)
