"""Brokers on a replicated log in virtual time; `make sim-broker` runs many more seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quorumlog.broker.client.broker_calls import pulled_of
from quorumlog.broker.message import Message
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.wire import PullRequest, PullResponse, SendRequest, SendResponse
from quorumlog.net.frame import Frame
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import SimulationProfile
from sim.broker.broker_run import run_brokers
from sim.broker.sim_brokers import BrokersWatched, SimBrokers
from sim.broker.sim_clients import SimBrokerClient, records_of
from sim.clients import asked_alone
from tests.sim.scenario import QUIET, Scenario

PATIENCE_MS = 60_000.0


def brokers_keep_their_promises(seeds: Sequence[int] = range(1, 9)) -> None:
    for seed in seeds:
        failure = run_brokers(seed).failure
        assert not failure, f"seed {seed}: {failure}"


def test_brokers_keep_their_promises_where_members_fail_and_a_seed_is_one_run() -> None:
    first, second = (run_brokers(3, faults_ms=1_500) for _ in range(2))
    assert not first.failure, first.failure
    assert first.trace_hash == second.trace_hash
    for what in ("acknowledged", "became master", "pulled"):
        assert first.counts[f"broker: {what}"], what


class DrivenBrokers(Scenario):
    """Three members with brokers of one queue."""

    def __init__(self, profile: SimulationProfile = QUIET, brokers: SimBrokers | None = None) -> None:
        self.brokers = brokers or SimBrokers({"orders": 1})
        super().__init__(start=False, checked=False, profile=profile, machines=self.brokers.machines_of)
        self.brokers.cluster = self.cluster
        self.watch(BrokersWatched(self.cluster, self.brokers))
        for member in self.members:
            member.start()
        self.client = SimBrokerClient(self.brokers, "driven")

    def await_master(self, *among: SimMember) -> SimMember:
        def master() -> SimMember | None:
            leader = self.leader(*among)
            if leader is None or not self.brokers.brokers[leader.member_id].role.state.is_master:
                return None
            return leader

        self.until(lambda: master() is not None, "master")
        found = master()
        assert found is not None
        return found

    def put(self, member: SimMember, *bodies: bytes, topic: str = "orders") -> list[Any]:
        """What becomes of it, once that is known."""
        told: list[Any] = []
        batch = records_of([Message(topic, body) for body in bodies], 0)
        self.client.ask(
            SendRequest(),
            told.append,
            batch,
            target=asked_alone(member.member_id),
            timeout_ms=PATIENCE_MS,
        )
        return told

    def put_and_wait(self, member: SimMember, *bodies: bytes, topic: str = "orders") -> SendResponse:
        told = self.put(member, *bodies, topic=topic)
        self.until(lambda: len(told) > 0, "answer")
        assert isinstance(told[0], Frame), told
        assert isinstance(told[0].message, SendResponse), told
        return told[0].message


def test_a_number_that_a_cut_took_back_is_given_out_again() -> None:
    log = DrivenBrokers()
    old = log.await_master()
    others = log.followers()
    assert log.put_and_wait(old, b"a", b"b", b"c").queue_offset == 0
    log.cut([old], others)
    lost = log.put(old, b"lost 1", b"lost 2")
    log.run_for(10)
    assert log.brokers.brokers[old.member_id].filler.next_offsets == {QueueKey("orders", 0): 5}
    new = log.await_master(*others)
    assert log.put_and_wait(new, b"d").queue_offset == 3
    log.heal()
    log.await_one_log(old, new)
    assert not any(isinstance(each, Frame) for each in lost)
    log.hand_over(new, old)
    log.await_master(old)
    assert log.put_and_wait(old, b"e").queue_offset == 4
    log.run_for(100)
    for broker in log.brokers.brokers.values():
        pulled = broker.reader.pull(QueueKey("orders", 0), 0).records.messages()
        assert [message.body for message in pulled] == [b"a", b"b", b"c", b"d", b"e"]


def test_the_preferred_leader_is_master_again_once_it_is_back() -> None:
    preferred = replace(
        QUIET.consensus,
        preferred_leader_ids=("n0",),
        preferred_check_interval_ms=100,
        preferred_cool_down_ms=300,
    )
    log = DrivenBrokers(replace(QUIET, consensus=preferred))
    n0 = log.members[0]
    log.until(lambda: log.await_master() is n0, "preferred master")
    log.cut([n0], log.followers())
    other = log.await_master(*log.members[1:])
    assert log.put_and_wait(other, b"meanwhile").queue_offset == 0
    log.heal()
    log.until(lambda: log.leader() is n0, "preferred leader")
    assert log.await_master() is n0
    assert log.put_and_wait(n0, b"again").queue_offset == 1


def a_pull_leaves_a_master_that_hangs_for_the_next_one() -> None:
    """It may wait for something new, and is not late for a minute."""
    log = DrivenBrokers()
    old = log.await_master()
    told: list[Any] = []
    request = PullRequest(topic="orders", queue_id=0, offset=0, wait_ms=60_000)
    log.client.ask(request, told.append, wait_ms=request.wait_ms, timeout_ms=PATIENCE_MS)
    log.run_for(100)
    old.pause(60_000)
    new = log.await_master(*(member for member in log.members if member is not old))
    log.run_for(3_000)
    assert log.put_and_wait(new, b"here").queue_offset == 0
    log.run_for(500)
    assert [type(each.message) for each in told] == [PullResponse]
    assert pulled_of(told[0]).next_offset == 1


def test_a_pull_leaves_a_master_that_hangs_for_the_next_one() -> None:
    a_pull_leaves_a_master_that_hangs_for_the_next_one()
