"""One run of a store in virtual time: faults for a while, then none, then everything must add up."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from quorumlog.consensus.ready import Role
from quorumlog.kv.service import StoreOptions
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.operations import Trace
from quorumlog.testing.profile import SimulationProfile
from sim.clients import STALLS
from sim.kv.histories import Histories
from sim.kv.linearizability import TimedOperation
from sim.kv.promises import check_all
from sim.kv.sim_clients import SimStoreClient
from sim.kv.sim_sessions import EndpointsOpen, SimEndpoints
from sim.log.checkers.acknowledged_appends import AcknowledgedAppends
from sim.log.checkers.conditional_appends import ConditionalAppends
from sim.log.profile import application_profile
from sim.log.world import LogWorld

FAULTS = ("kill", "power loss", "pause", "partition", "one-way cut", "reset", "slow disk")
FAULTS_MS = 6_000.0
CLIENTS = 4


@dataclass(slots=True)
class StoreRunResult:
    seed: int
    failure: str = ""
    """Empty, or what was violated, with the place."""
    counts: Counter[str] = field(default_factory=Counter)
    trace_hash: int = 0
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
        leaders = [m for m in self.cluster.members if m.node.raft.role is Role.LEADER]
        check_all(self.histories, self.endpoints.machines[leaders[0].member_id].keyspace)
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
    cluster = endpoints.cluster = LogWorld(random, profile, Trace(), endpoints.machines_of).cluster
    # These know what was appended, which here is the service's.
    kinds = AcknowledgedAppends | ConditionalAppends
    cluster.checkers = [c for c in cluster.checkers if not isinstance(c, kinds)]
    cluster.checkers.append(EndpointsOpen(cluster, endpoints))
    return SimStores(cluster, endpoints, histories)


def run_store(
    seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS
) -> StoreRunResult:
    """Same seed and arguments, same run. Raises nothing."""
    result = StoreRunResult(seed)
    try:
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
    except Exception:  # whatever it is, this run has failed, and the others go on
        result.failure = traceback.format_exc()
    return result
