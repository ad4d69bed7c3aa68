"""OtherMode: now and then one member is started with another flush mode than the rest of its group."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

MIXED_SHARE = 1 / 8


class OtherMode:
    """One member at a time: two of three in another mode would be a group in that mode, and so would a
    member be that is a quorum alone, where members come and go."""

    def __init__(self, cluster: SimCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._odd: SimMember | None = None

    def begin(self) -> None:
        profile = self._cluster.profile
        has_others = profile.size >= 3 and not profile.has_lossy_disks
        if has_others and self._random.random() < MIXED_SHARE:
            self._strike_later()

    def stop(self) -> None:
        if self._odd is not None:
            self._configure(self._odd, self._cluster.profile.storage.flush)
            self._odd = None

    def _strike_later(self) -> None:
        self._cluster.at(self._random.uniform(500, 6_000), self._strike)

    def _strike(self) -> None:
        if not self._cluster.is_faulty:
            return
        odd = self._random.choice(self._cluster.members)
        fairness = self._cluster.faults.context.fairness
        if fairness is not None and not fairness.may_lose(odd.replica):
            self._strike_later()
            return
        self._odd = odd
        own = self._cluster.profile.storage.flush
        self._cluster.trace.count("fault: another flush mode")
        self._configure(self._odd, "async" if own == "sync" else "sync")
        self._cluster.at(self._random.uniform(100, 3_000), self._end)

    def _end(self) -> None:
        if self._cluster.is_faulty:
            self.stop()
            self._strike_later()

    def _configure(self, member: SimMember, flush: str) -> None:
        """As somebody does who changes one option and restarts the process."""
        member.note("is configured", f"flush = {flush}")
        member.kill()
        member.config = replace(member.config, storage=replace(member.config.storage, flush=flush))
        self._cluster.at(self._random.uniform(10, 100), member.start)
