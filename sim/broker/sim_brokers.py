"""A broker on each process of each simulated member, and a checker that watches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorumlog.broker.broker_port import TICK_MS
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.dledger_broker import DLedgerBroker, DLedgerCommitLog, FixedTopics
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.dispatch import MESSAGES
from quorumlog.broker.store.log_files import PutOutcome, PutRequest
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from quorumlog.testing.promises import Checker, Violation

CONFIG = MessageStoreConfig(max_hash_slot_num=64, max_index_num=256, mapped_file_size_consume_queue=800)


class _Puts:
    def __init__(self, message_log: DLedgerCommitLog) -> None:
        self._log = message_log

    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None:
        self._log.put([PutRequest(records, waits, answer)])


class _Reads:
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except (LedgerError, StoreFailure) as error:
            result = error
        done(result)


class _Waits:
    def add(self, key: QueueKey, wait_ms: int, again: Callable[[], None]) -> bool:
        return False


class SimBrokers:
    """`cluster` is set once it is made."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self._topics = topics
        self.cluster: SimCluster
        self._made: dict[str, DLedgerBroker] = {}
        self.brokers: dict[str, DLedgerBroker] = {}
        """Of members that run, by id."""

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        """The broker of the next process of a member."""
        broker = self._made[member_id] = DLedgerBroker(
            MemoryDisk(),
            "messages",
            CONFIG,
            member_id=member_id,
            brokers={},
            topics=FixedTopics(self._topics),
        )
        return broker.machines

    def started(self, member: SimMember) -> None:
        process, node = member.process, member.node

        def of_now() -> bool:
            return member.process == process and member.is_up and member.node is node

        door = DoorMember(
            lambda: node if of_now() else None, lambda act: member.enter(act) if of_now() else None
        )
        broker = self.brokers[member.member_id] = self._made[member.member_id]
        broker.open(door, _Puts, _Reads(), _Waits())

        def tick() -> None:
            if of_now():
                broker.tick(member.local_ms)
                member.later(TICK_MS, tick)

        member.later(TICK_MS, tick)

    def stopped(self, member: SimMember) -> None:
        self.brokers.pop(member.member_id, None)


class BrokersWatched(Checker):
    """Opens a broker where a process begins, and looks at it after each of its turns.

    A master has dispatched every entry of earlier leaders, and there is one in a term. No member finds
    that a message is not the next one of its queue."""

    def __init__(self, cluster: SimCluster, brokers: SimBrokers) -> None:
        super().__init__(cluster)
        self._brokers = brokers
        self._masters: dict[int, str] = {}
        self._looked: dict[str, int] = {}

    def started(self, member: SimMember) -> None:  # type: ignore[override]
        self._brokers.started(member)

    def stopped(self, member: SimMember) -> None:  # type: ignore[override]
        self._brokers.stopped(member)

    def turned(self, member: SimMember) -> None:  # type: ignore[override]
        broker = self._brokers.brokers.get(member.member_id)
        if broker is None:
            return
        (status,) = [each for each in member.node.machines.status() if each.name == MESSAGES]
        if status.problem and "has stopped" in status.problem:
            raise Violation(f"{member.member_id}: {status.problem}")
        term = broker.filler.term
        if term is None or self._looked.get(member.member_id) == term:
            return
        self._looked[member.member_id] = term
        first = self._masters.setdefault(term, member.member_id)
        if first != member.member_id:
            raise Violation(f"{first} and {member.member_id} are masters of term {term}")
        raft = member.node.raft
        if status.applied_index < raft.ledger_end.index:
            of_next = raft.term_at(status.applied_index + 1)
            if of_next != term:
                raise Violation(
                    f"{member.member_id} is master of term {term}, and has not dispatched entry"
                    f" {status.applied_index + 1} of term {of_next}"
                )
        self.cluster.trace.count("broker: became master")
