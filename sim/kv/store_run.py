"""One run of a store in virtual time: faults for a while, then none, then everything must add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from quorumlog.kv.service import StoreOptions
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.profile import SimulationProfile
from sim.applications import FAULTS, FAULTS_MS, make_cluster
from sim.clients import STALLS, PortsOpened
from sim.kv.histories import Histories
from sim.kv.linearizability import TimedOperation
from sim.kv.promises import check_all
from sim.kv.sim_clients import SimStoreClient
from sim.kv.sim_sessions import SimEndpoints
from sim.log.profile import application_profile
from sim.ran import Ran

CLIENTS = 4


@dataclass(slots=True)
class StoreRan(Ran):
    of_key: Mapping[bytes, list[TimedOperation]] = field(default_factory=dict)
    """What clients saw of each key."""


class SimStores(NamedTuple):
    """Members with a store each, none of which runs yet, and what clients of them note."""

    cluster: SimCluster
    endpoints: SimEndpoints
    histories: Histories

    def check(self) -> None:
        """Of a cluster that is whole. Raises Violation."""
        counts = self.cluster.trace.counts
        leader = self.cluster.leading()[0]
        check_all(self.histories, self.endpoints.machines[leader.member_id].keyspace)
        counts["store: keys checked"] += len(self.histories.of_key)


def made_stores(
    seed: int, faults: Sequence[str] = (), profile: SimulationProfile | None = None
) -> SimStores:
    """`profile`: what they are like instead of what the seed makes of them."""
    random = Random(seed)
    profile = profile or application_profile(random, seed, faults, 1_500.0)
    histories = Histories()
    options = StoreOptions(auto_compaction_ms=Random(f"{seed}:compaction").choice((0, 3_000)))
    endpoints = SimEndpoints(options, histories)
    cluster = make_cluster(random, profile, endpoints)
    cluster.checkers.append(PortsOpened(cluster, endpoints))
    return SimStores(cluster, endpoints, histories)


def run_store(seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS) -> StoreRan:
    """Same seed and arguments, same run. Raises nothing."""
    result = StoreRan(seed)
    with result.noting_failure():
        stores = made_stores(seed, faults)
        cluster = stores.cluster
        stores.endpoints.stalls = STALLS
        result.of_key = stores.histories.of_key
        result.counts = cluster.trace.counts
        clients = [
            SimStoreClient(stores.endpoints, stores.histories, f"c{number}") for number in range(CLIENTS)
        ]
        for member in cluster.members:
            member.start()
        for client in clients:
            client.work()
        cluster.faults.begin()
        cluster.run_for(faults_ms)
        make_whole(cluster)
        result.trace_hash = cluster.trace.hash
        stores.check()
    return result
