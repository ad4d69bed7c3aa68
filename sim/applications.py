"""Simulated clusters with an application on them, whose clients are the only ones that append."""

from __future__ import annotations

from random import Random

from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.operations import Trace
from quorumlog.testing.profile import SimulationProfile
from sim.clients import SimPorts
from sim.log.checkers.acknowledged_appends import AcknowledgedAppends
from sim.log.checkers.conditional_appends import ConditionalAppends
from sim.log.world import LogWorld

FAULTS = ("kill", "power loss", "pause", "partition", "one-way cut", "reset", "slow disk")
FAULTS_MS = 6_000.0


def make_cluster(random: Random, profile: SimulationProfile, ports: SimPorts) -> SimCluster:
    """Of members with these ports, none of which runs yet."""
    cluster = ports.cluster = LogWorld(random, profile, Trace(), ports.machines_of).cluster
    # These know what was appended, which here is the application's.
    kinds = AcknowledgedAppends | ConditionalAppends
    cluster.checkers = [each for each in cluster.checkers if not isinstance(each, kinds)]
    return cluster
