"""Faults: what strikes a cluster, kind by kind, again and again until `stop`.

They are fair (fault_context.py), but for `LOSSY_DISK_KINDS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.sim.faults.damage_faults import DamageFaults
from quorumlog.sim.faults.disk_faults import DiskFaults, make_room
from quorumlog.sim.faults.fault_context import FaultContext, Kinds
from quorumlog.sim.faults.hanging_disks import HangingDisks
from quorumlog.sim.faults.link_faults import LinkFaults
from quorumlog.sim.faults.lossy_disk_faults import LossyDiskFaults
from quorumlog.sim.faults.network_faults import NetworkFaults
from quorumlog.sim.faults.process_faults import ProcessFaults
from quorumlog.sim.faults.releases import Releases
from quorumlog.sim.faults.wall_clocks import WallClocks

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimCluster


class Faults:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._profile = cluster.profile
        context = FaultContext(cluster)
        self.fairness = context.fairness
        self._links = LinkFaults(context)
        self._hanging_disks = HangingDisks(context)
        self._wall_clocks = WallClocks(cluster)
        self._releases = Releases(cluster)
        self.processes = ProcessFaults(context)
        self.damage = DamageFaults(context)
        self.disks = DiskFaults(context, self.damage)
        self._kinds: Kinds = {
            **self.processes.kinds(),
            **NetworkFaults(context).kinds(),
            **self.disks.kinds(),
            **self.damage.kinds(),
            **LossyDiskFaults(context).kinds(),
        }

    def begin(self) -> None:
        self._links.begin()
        self._hanging_disks.begin()
        self._wall_clocks.begin()
        self._releases.begin()
        if self._profile.fault_kinds:
            self._begin()

    def _begin(self) -> None:
        self._cluster.at(self._random.expovariate(1 / self._profile.fault_every_ms), self._strike)

    def _strike(self) -> None:
        if self._cluster.is_faulty:
            self._kinds[self._random.choice(self._profile.fault_kinds)]()
            self._begin()

    def stop(self) -> None:
        """What has begun ends at once."""
        cluster = self._cluster
        cluster.network.heal(set(cluster.network.cut))
        self._links.stop()
        self._hanging_disks.stop()
        self._wall_clocks.stop()
        self._releases.stop()
        self.processes.stop()
        for member in cluster.members:
            member.disk.crash_countdown = None
            make_room(member)
            member.disk.fail_no_sync()
            member.sync_ms = min(self._profile.sync_ms, 5.0)
            member.set_clock(rate=1.0)
            cluster.at(self._random.uniform(0, 100), member.start)
