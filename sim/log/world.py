"""LogWorld: a simulated cluster with all that works on it, all that strikes it, and every checker."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from quorumlog.consensus.messages import PushEntryResponse, SnapshotResponse, VoteResponse
from quorumlog.consensus.ready import Envelope
from quorumlog.node import MachineFactory
from quorumlog.testing.cluster import MachinesOf, SimCluster, make_whole
from quorumlog.testing.operations import Trace
from quorumlog.testing.profile import SimulationProfile
from quorumlog.testing.promises import CheckedMember, Checker
from sim.log.checkers import all_checkers, lossy_disk_checkers
from sim.log.faults.fairness import MembersFairness
from sim.log.faults.lossy_disk_faults import LossyDiskFaults
from sim.log.faults.releases import Releases
from sim.log.faults.sectors import Sectors
from sim.log.faults.wall_clocks import WallClocks
from sim.log.work.clients import LogClient
from sim.log.work.fresh_read_work import FreshReadWork
from sim.log.work.member_work import MemberWork
from sim.log.work.producers import SimProducer
from sim.log.work.readers import SimReader
from sim.log.work.user_work import UserWork


class LogWorld:
    def __init__(
        self,
        random: Random,
        profile: SimulationProfile,
        trace: Trace,
        machines: Mapping[str, MachineFactory] | MachinesOf | None = None,
    ) -> None:
        """`machines`: see `SimCluster`."""
        checkers = lossy_disk_checkers if profile.has_lossy_disks else all_checkers
        self.cluster = cluster = SimCluster(random, profile, trace, machines, checkers)
        self.clients = [LogClient(cluster, f"client{i}") for i in range(profile.clients)]
        cluster.clients += self.clients
        if profile.changes_members:
            cluster.faults.context.fairness = fairness = MembersFairness(cluster)
            cluster.checkers.append(fairness)
        cluster.checkers.append(Sent(cluster))
        cluster.faults.beside += [WallClocks(cluster), Releases(cluster)]
        cluster.faults.kinds |= LossyDiskFaults(cluster.faults.context).kinds()
        self.sectors = Sectors(cluster.faults)
        self.member_work = MemberWork(cluster)
        self.fresh_reads = FreshReadWork(cluster)
        self.user_work = UserWork(cluster) if profile.has_users else None
        names = ("billing", "audit") if profile.has_retention else ()
        self.readers = [SimReader(cluster, name) for name in names]
        self.producers = [SimProducer(cluster, f"p{i}") for i in range(profile.producers)]

    def begin_work(self) -> None:
        for client in self.clients:
            client.work()
        for producer in self.producers:
            producer.work()
        for reader in self.readers:
            reader.work()
        if self.cluster.profile.reads_freshly:
            self.fresh_reads.begin()
        if self.user_work is not None:
            self.user_work.begin()

    def make_whole(self) -> None:
        users = self.user_work
        make_whole(
            self.cluster,
            lambda: (
                (users is None or users.is_settled)
                and all(producer.is_settled for producer in self.producers)
            ),
        )


class Sent(Checker):
    """Counts messages for `coverage`."""

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        counts, message = self.cluster.trace.counts, envelope.message
        if isinstance(message, VoteResponse):
            counts[f"vote result: {message.result.name}"] += 1
        elif isinstance(message, PushEntryResponse):
            counts[f"push result: {message.result.name}"] += 1
        elif isinstance(message, SnapshotResponse) and message.data:
            counts["install: a piece of a snapshot"] += 1
