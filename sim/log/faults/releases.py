"""Releases: the group was formed by the release before; members are upgraded one by one, and go back,
until an operator finishes the upgrade. Some ask for that too early, which has to be refused."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from quorumlog.log_state.control_entries import LEVEL
from quorumlog.node.operator_orders import FinishedUpgrade, UpgradeOutcome

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

CHANGE_EVERY_MS = 700.0
ASK_EVERY_MS = 1_500.0
BACK_SHARE = 0.3


class Releases:
    """What is drawn for them moves nothing else of a seed's run."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.stream("releases")
        self._is_finishing = False
        """Somebody has asked for the end of the upgrade: nobody goes back any more."""
        self._went_back_ms = -math.inf

    def begin(self) -> None:
        if not self._cluster.profile.is_upgraded:
            return
        for member in self._cluster.members:
            member.level = LEVEL - 1
        self._later(CHANGE_EVERY_MS, self._change)
        self._later(ASK_EVERY_MS, self._ask)

    def stop(self) -> None:
        if self._cluster.profile.is_upgraded:
            self._is_finishing = True
            for member in self._cluster.members:
                self._run(member, LEVEL)

    def _later(self, every_ms: float, work: object) -> None:
        self._cluster.at(self._random.expovariate(1 / every_ms), work)  # type: ignore[arg-type]

    def _change(self) -> None:
        cluster, draw = self._cluster, self._random
        if not cluster.is_faulty:
            return
        member = draw.choice(cluster.members)
        if member.level < LEVEL:
            self._run(member, LEVEL)
        elif not self._is_finishing and draw.random() < BACK_SHARE:
            self._went_back_ms = cluster.now_ms
            self._run(member, LEVEL - 1)
        self._later(CHANGE_EVERY_MS, self._change)

    def _run(self, member: SimMember, level: int) -> None:
        """As somebody does who installs another release and restarts the process."""
        if member.level == level:
            return
        self._cluster.trace.count(f"upgrade: {'a member goes back' if level < LEVEL else 'a member'}")
        member.note("is of another release", f"level {level}")
        is_up = member.is_up
        member.kill()
        member.level = level
        if is_up:
            self._cluster.at(self._random.uniform(10, 100), member.start)

    def _ask(self) -> None:
        """Asked of everybody: who leads does it."""
        cluster = self._cluster
        if not cluster.is_faulty:
            return
        is_early = any(member.level < LEVEL for member in cluster.members)
        # Who has gone back a moment ago may not be missed by anybody yet.
        quiet_ms = cluster.now_ms - self._went_back_ms
        is_told = quiet_ms > 3 * cluster.profile.consensus.election_timeout_ms
        if is_told and not (is_early and cluster.profile.spares):
            self._is_finishing = True
            for member in cluster.members:
                if member.is_up:
                    member.enter(partial(self._finish, member))
        self._later(ASK_EVERY_MS, self._ask)

    def _finish(self, member: SimMember) -> None:
        def done(outcome: UpgradeOutcome) -> None:
            what = "is finished" if isinstance(outcome, FinishedUpgrade) else type(outcome).__name__
            self._cluster.trace.count(f"upgrade: {what}")

        member.node.orders.finish_upgrade(done)
