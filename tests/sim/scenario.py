"""Scenario: a simulated cluster on which nothing happens by chance that matters, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from random import Random

from quorumlog.config import ConsensusConfig, StoreConfig
from quorumlog.consensus.ready import Role
from quorumlog.node import MachineFactory
from quorumlog.testing.clients import SimClient
from quorumlog.testing.cluster import MachinesOf, make_whole
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import ClientAppend, Trace
from quorumlog.testing.profile import SimulationProfile
from quorumlog.testing.promises import Checker
from sim.log.world import LogWorld

QUIET = SimulationProfile(
    size=3,
    consensus=ConsensusConfig(
        heartbeat_interval_ms=30,
        max_heartbeat_leak=4,
        min_vote_interval_ms=10,
        max_vote_interval_ms=60,
        push_resend_ms=300,
    ),
    storage=StoreConfig(
        segment_bytes=8192,
        index_segment_bytes=2048,
        reserve_step_bytes=8192,
        index_sync_bytes=1 << 20,
        checkpoint_interval_ms=1_000_000,
    ),
    max_uncommitted_bytes=1 << 20,
    fault_kinds=(),
    fault_every_ms=1e9,
    delay_ms=1.0,
    jitter=0.0,
    loss=0.0,
    repeat=0.0,
    in_order=True,
    holds_cut_messages=False,
    sync_ms=1.0,
    clients=0,
    appends_per_second=10.0,
    body_bytes=40,
    batch_entries=1,
)
ELECTION_MS = QUIET.consensus.election_timeout_ms
"""Nobody is without a leader for much longer where a majority can talk."""


class Scenario:
    """Every checker looks on; time passes only in `run_for`, `until` and what calls them."""

    def __init__(
        self,
        *,
        size: int = 3,
        seed: int = 1,
        flush: str = "sync",
        store: str = "file",
        profile: SimulationProfile = QUIET,
        start: bool = True,
        checked: bool = True,
        machines: Mapping[str, MachineFactory] | MachinesOf | None = None,
    ) -> None:
        storage = replace(profile.storage, flush=flush)
        profile = replace(profile, size=size, storage=storage, store=store)
        self.world = LogWorld(Random(seed), profile, Trace(), machines)
        self.cluster = self.world.cluster
        self.members = self.cluster.members
        if not checked:
            self.cluster.checkers.clear()
        self.client = SimClient(self.cluster, "client")
        if start:
            for member in self.members:
                member.start()
            self.until(lambda: self.leader() is not None, "a leader")

    def watch(self, checker: Checker) -> None:
        self.cluster.checkers.append(checker)
        self.cluster._hooks.clear()

    # ---------------------------------------------------------------- time

    def run_for(self, duration_ms: float) -> None:
        self.cluster.run_for(duration_ms)

    def until(
        self, condition: Callable[[], bool], what: str, *, within_ms: float = 10_000, step_ms: float = 1
    ) -> None:
        """Raises AssertionError if it does not come true."""
        until_ms = self.cluster.now_ms + within_ms
        while not condition():
            assert self.cluster.now_ms < until_ms, f"no {what} within {within_ms:g} ms"
            self.cluster.run_for(step_ms)

    def make_whole(self) -> None:
        """Every fault ends; one leader, one log, and all promises kept."""
        make_whole(self.cluster)

    # ---------------------------------------------------------------- members

    def leader(self, *among: SimMember) -> SimMember | None:
        """Whoever leads the highest term; only `among` these, if any are named."""
        leading = [m for m in among or self.members if m.is_up and m.node.raft.role is Role.LEADER]
        return max(leading, key=lambda member: member.node.raft.term, default=None)

    def await_leader(self, *among: SimMember) -> SimMember:
        self.until(lambda: self.leader(*among) is not None, "leader")
        leader = self.leader(*among)
        assert leader is not None
        return leader

    def await_one_log(self, one: SimMember, other: SimMember) -> None:
        self.until(lambda: one.node.store.end == other.node.store.end, "one log")

    def hand_over(self, leader: SimMember, to: SimMember) -> None:
        leader.enter(lambda: leader.node.transfer(to.member_id, lambda outcome: None))
        self.until(lambda: self.leader() is to, f"leadership of {to.member_id}")

    def followers(self) -> list[SimMember]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    # ---------------------------------------------------------------- log and network

    def ask(
        self,
        member: SimMember,
        body_bytes: int = 0,
        *,
        expected_last: int | None = None,
        timeout_ms: int = 5_000,
    ) -> ClientAppend:
        """One append to this member, not waited for; the body is at least a number."""
        self.client._target = member.member_id
        body = b"%d." % (len(self.cluster.operations.appends) + 1)
        bodies = (body.ljust(body_bytes, b"."),)
        return self.client.append(bodies, timeout_ms, expected_last=expected_last)

    def ask_and_wait(self, member: SimMember, body_bytes: int = 0) -> None:
        asked = self.ask(member, body_bytes)
        self.until(lambda: asked.is_committed, "acknowledged append")

    def append(self, count: int = 1) -> None:
        """Entries that the present leader acknowledges and everybody who is up has applied."""
        for _ in range(count):
            self.ask_and_wait(self.await_leader())
        end = self.await_leader().node.store.end.index
        self.until(
            lambda: all(m.node.durable_committed_index >= end for m in self.members if m.is_up),
            "one log",
        )

    def cut(self, one: list[SimMember], other: list[SimMember], *, both_ways: bool = True) -> None:
        """Nothing passes from `one` to `other`, nor back."""
        for a, b in product(one, other):
            self.cluster.network.cut.add((a.member_id, b.member_id))
            if both_ways:
                self.cluster.network.cut.add((b.member_id, a.member_id))

    def heal(self, *members: SimMember) -> None:
        """What is cut between these members passes again; between all if none is named."""
        ids = {member.member_id for member in members or self.members}
        self.cluster.network.heal({way for way in self.cluster.network.cut if ids.issuperset(way)})
