"""One run of consumer groups in virtual time: faults for a while, then none, then all must add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quorumlog.broker.record_batch import QueueKey
from quorumlog.testing.cluster import make_whole
from quorumlog.testing.promises import Violation
from sim.applications import FAULTS, FAULTS_MS
from sim.broker.broker_run import made_cluster
from sim.groups.sim_groups import QUEUES, TOPIC, SimGroupBrokers
from sim.groups.sim_members import GroupHistory, SimAsker, SimReader, SimSender, SimSessionSender
from sim.ran import Ran

LAST_MS = 20_000.0
"""Virtual: so long the group may take to see what is left, once nothing fails any more."""


def run_groups(seed: int, *, faults_ms: float = FAULTS_MS, faults: Sequence[str] = FAULTS) -> Ran:
    """Same seed and arguments, same run. Raises nothing."""
    result = Ran(seed)
    with result.noting_failure():
        brokers = SimGroupBrokers()
        cluster = made_cluster(seed, brokers, faults)
        result.counts = cluster.trace.counts
        history = GroupHistory()
        senders = [
            *(SimSender(brokers, f"s{number}", history) for number in range(2)),
            SimSessionSender(brokers, "p", history),
        ]
        orderly = [False] * 3 if seed % 2 else [True, True, False]
        readers = [
            SimReader(brokers, f"r{number}", history, is_orderly=each)
            for number, each in enumerate(orderly)
        ]
        others = [*readers, SimAsker(brokers, "asker", history)]
        for member in cluster.members:
            member.start()
        for client in (*senders, *others):
            client.begin()
        cluster.faults.begin()
        cluster.run_for(faults_ms)
        for client in (*senders, *others):
            client.works = False
        make_whole(cluster)
        for client in others:
            client.begin()
        stop_ms = cluster.now_ms + LAST_MS
        while cluster.now_ms < stop_ms and not history.sent <= history.seen.keys():
            cluster.run_for(100.0)
        for client in others:
            client.works = False
        cluster.run_for(1_000.0)
        result.trace_hash = cluster.trace.hash
        check_promises(brokers, history)
    return result


def check_promises(brokers: SimGroupBrokers, history: GroupHistory) -> None:
    """Every acknowledged message was seen by the group; each lies in its topic at most once, and once if
    it was acknowledged, and none that was refused. Raises Violation."""
    missing = history.sent - history.seen.keys()
    if missing:
        raise Violation(f"the group has never seen {sorted(missing)[:5]} of {len(missing)}")
    for member_id, broker in brokers.brokers.items():
        stored: Counter[bytes] = Counter()
        for queue_id in range(QUEUES):
            queue = QueueKey(TOPIC, queue_id)
            messages = broker.reader.pull(queue, 0, 1 << 20, 1 << 30).records.messages()
            stored.update(each.body for each in messages)
        repeated = [body for body, count in stored.items() if count > 1]
        if repeated:
            raise Violation(f"{member_id} has {repeated[:5]} more than once")
        if refused := history.refused & stored.keys():
            raise Violation(f"{member_id} has {sorted(refused)[:5]}, which were refused")
        lost = (history.delayed & history.sent) - stored.keys()
        if lost:
            raise Violation(f"{member_id} has never released {sorted(lost)[:5]}")
