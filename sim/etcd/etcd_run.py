"""One run of etcd's clients in virtual time: faults for a while, then none, then all must add up."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from quorumlog.kv.service import StoreOptions
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.operations import Trace
from quorumlog.testing.promises import Violation
from sim.clients import STALLS
from sim.etcd.promises import check_all
from sim.etcd.sim_clients import EtcdHistory, SimEtcdClient
from sim.etcd.sim_members import PortsOpen, SimEtcd
from sim.log.checkers.acknowledged_appends import AcknowledgedAppends
from sim.log.checkers.conditional_appends import ConditionalAppends
from sim.log.profile import application_profile
from sim.log.world import LogWorld

FAULTS = (
    "kill",
    "power loss",
    "clean stop",
    "pause",
    "partition",
    "one-way cut",
    "reset",
    "slow disk",
    "transfer",
    "wipe",
)
FAULTS_MS = 6_000.0
CLIENTS = 4
DRAIN_MS = 30_000.0
"""How long watches may take to come to the end, and leases to end, once nothing fails."""


@dataclass(slots=True)
class EtcdRunResult:
    seed: int
    failure: str = ""
    """Empty, or what was violated, with the place."""
    counts: Counter[str] = field(default_factory=Counter)
    trace_hash: int = 0


def run_etcd(
    seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS
) -> EtcdRunResult:
    """Same seed and arguments, same run. Raises nothing."""
    result = EtcdRunResult(seed)
    try:
        _run(result, faults_ms, faults)
    except Exception:  # whatever it is, this run has failed, and the others go on
        result.failure = traceback.format_exc()
    return result


def _run(result: EtcdRunResult, faults_ms: float, faults: Sequence[str]) -> None:
    random = Random(result.seed)
    profile = application_profile(random, result.seed, faults, 1_500.0)
    # Two machines of one name have one address here: a directory that was wiped stays an observer.
    profile = replace(profile, spares=0, auto_replace_after_ms=0)
    history = EtcdHistory()
    etcd = SimEtcd(history.truth, StoreOptions(auto_compaction_ms=0))
    cluster = etcd.cluster = LogWorld(random, profile, Trace(), etcd.machines_of).cluster
    # These know what was appended, which here is the service's.
    kinds = AcknowledgedAppends | ConditionalAppends
    cluster.checkers = [each for each in cluster.checkers if not isinstance(each, kinds)]
    cluster.checkers.append(PortsOpen(cluster, etcd))
    etcd.stalls = STALLS
    result.counts = cluster.trace.counts
    with etcd.living():
        for member in cluster.members:
            member.start()
        clients = [SimEtcdClient(etcd, history, f"c{number}") for number in range(CLIENTS)]
        for client in clients:
            client.begin()
        cluster.faults.begin()
        cluster.run_for(faults_ms)
        for client in clients:
            client.is_ending = True
        make_whole(cluster)
        _drain(cluster, etcd, history)
        result.trace_hash = cluster.trace.hash
    check_all(history)
    cluster.trace.count("etcd: runs checked")


def _drain(cluster: SimCluster, etcd: SimEtcd, history: EtcdHistory) -> None:
    until_ms = cluster.now_ms + DRAIN_MS
    while True:
        if etcd.failures:
            raise Violation("\n".join(etcd.failures))
        behind = [
            watch
            for watch in history.seen
            if not watch.is_over and watch.next_revision <= history.truth.newest
        ]
        leases = {lease.lease for lease in history.leases} - history.truth.ended_ms.keys()
        if not behind and not leases:
            return
        if cluster.now_ms > until_ms:
            raise Violation(f"after {DRAIN_MS:g} ms {leases} have not ended, and behind are {behind}")
        cluster.run_for(250.0)
