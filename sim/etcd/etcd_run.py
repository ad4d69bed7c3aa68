"""One run of etcd's clients in virtual time: faults for a while, then none, then all must add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from quorumlog.kv.service import StoreOptions
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.promises import Violation
from sim.applications import FAULTS_MS, make_cluster
from sim.clients import STALLS, PortsOpened
from sim.etcd.promises import check_all
from sim.etcd.sim_clients import EtcdHistory, SimEtcdClient
from sim.etcd.sim_members import SimEtcd
from sim.log.profile import application_profile
from sim.ran import Ran

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
CLIENTS = 4
DRAIN_MS = 30_000.0
"""How long watches may take to come to the end, and leases to end, once nothing fails."""


def run_etcd(seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS) -> Ran:
    """Same seed and arguments, same run. Raises nothing."""
    result = Ran(seed)
    with result.noting_failure():
        _run(result, faults_ms, faults)
    return result


def _run(result: Ran, faults_ms: float, faults: Sequence[str]) -> None:
    random = Random(result.seed)
    profile = application_profile(random, result.seed, faults, 1_500.0)
    # Two machines of one name have one address here: a directory that was wiped stays an observer.
    profile = replace(profile, spares=0, auto_replace_after_ms=0)
    history = EtcdHistory()
    etcd = SimEtcd(history.truth, StoreOptions(auto_compaction_ms=0))
    cluster = make_cluster(random, profile, etcd)
    cluster.checkers.append(PortsOpened(cluster, etcd))
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
