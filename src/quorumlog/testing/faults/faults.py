"""Faults: what strikes a cluster, kind by kind, again and again until `stop`.

They are fair (fault_context.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quorumlog.testing.faults.damage_faults import DamageFaults
from quorumlog.testing.faults.disk_faults import DiskFaults, make_room
from quorumlog.testing.faults.fault_context import FaultContext, Kinds
from quorumlog.testing.faults.hanging_disks import HangingDisks
from quorumlog.testing.faults.link_faults import LinkFaults
from quorumlog.testing.faults.network_faults import NetworkFaults
from quorumlog.testing.faults.process_faults import ProcessFaults

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster


class Beside(Protocol):
    """What goes on beside the kinds."""

    def begin(self) -> None: ...
    def stop(self) -> None: ...


class Faults:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._profile = cluster.profile
        self.context = context = FaultContext(cluster)
        self.fairness = context.fairness
        self.beside: list[Beside] = [LinkFaults(context), HangingDisks(context)]
        self.processes = ProcessFaults(context)
        self.damage = DamageFaults(context)
        self.disks = DiskFaults(context, self.damage)
        self.kinds: Kinds = {
            **self.processes.kinds(),
            **NetworkFaults(context).kinds(),
            **self.disks.kinds(),
            **self.damage.kinds(),
        }

    def begin(self) -> None:
        for each in self.beside:
            each.begin()
        if self._profile.fault_kinds:
            self._begin()

    def _begin(self) -> None:
        self._cluster.at(self._random.expovariate(1 / self._profile.fault_every_ms), self._strike)

    def _strike(self) -> None:
        if self._cluster.is_faulty:
            self.kinds[self._random.choice(self._profile.fault_kinds)]()
            self._begin()

    def stop(self) -> None:
        """What has begun ends at once."""
        cluster = self._cluster
        cluster.network.heal(set(cluster.network.cut))
        for each in self.beside:
            each.stop()
        self.processes.stop()
        for member in cluster.members:
            member.disk.crash_countdown = None
            make_room(member)
            member.disk.fail_no_sync()
            member.sync_ms = min(self._profile.sync_ms, 5.0)
            member.set_clock(rate=1.0)
            cluster.at(self._random.uniform(0, 100), member.start)
