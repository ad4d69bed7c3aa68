"""Brokers with topics and groups on simulated members, and requests to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.wire import AnyBrokerMessage
from quorumlog.errors import LedgerError
from quorumlog.node import MachineFactory
from quorumlog.store.memory_disk import MemoryDisk
from sim.broker.sim_brokers import CONFIG, SimBrokers

TOPIC, QUEUES = "orders", 3
OPTIONS = GroupOptions(
    first_topics={TOPIC: QUEUES},
    member_timeout_ms=1_500.0,
)
QUICK = replace(CONFIG, message_delay_level="1s " * 17 + "1s")
LATENCY_MS = (0.05, 2.0)
Told = Callable[[Any], None]
"""Gets an answer, or a LedgerError."""


class SimGroupBrokers(SimBrokers):
    def __init__(self, options: GroupOptions = OPTIONS) -> None:
        super().__init__({})
        self._options = options
        self._tokens = 0

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        """The broker of the next process of a member."""

        def wall_ms() -> float:
            (member,) = [each for each in self.cluster.members if each.member_id == member_id]
            return member.wall_clock_ms()

        groups = GroupService(self._options)
        broker = self._made[member_id] = DLedgerBroker(
            MemoryDisk(),
            "messages",
            QUICK,
            member_id=member_id,
            brokers={},
            topics=groups.topics,
            groups=groups,
            wall_ms=wall_ms,
            token=self._token,
        )
        return broker.machines

    def _token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16, "big")

    def reach(self, member_id: str, random: Any, act: Callable[[DLedgerBroker], None]) -> None:
        """A moment later, if the member is up then; a paused one acts when it goes on."""

        def arrive() -> None:
            (member,) = [each for each in self.cluster.members if each.member_id == member_id]
            broker = self.brokers.get(member_id)
            if broker is None or not member.is_up:
                return
            if member.is_paused:
                member.later(0.0, arrive)
            else:
                act(broker)

        self.cluster.at(random.uniform(*LATENCY_MS), arrive)

    def ask(self, member_id: str, random: Any, message: AnyBrokerMessage, told: Told) -> None:
        """A request of a client; `told` hears at most one answer."""
        session = SimSession(self, random, told)

        def act(broker: DLedgerBroker) -> None:
            assert broker.request(cast(Any, session), message, cast(Any, None))

        self.reach(member_id, random, act)


class SimSession:
    """A `BrokerSession` of one request."""

    def __init__(self, brokers: SimGroupBrokers, random: Any, told: Told) -> None:
        self._brokers = brokers
        self._random = random
        self._told = told

    def answer(self, message: AnyBrokerMessage, records: object = None) -> None:
        cluster = self._brokers.cluster
        cluster.at(self._random.uniform(*LATENCY_MS), lambda: self._told(message))

    def refuse(self, request_id: int, error: LedgerError) -> None:
        cluster = self._brokers.cluster
        cluster.at(self._random.uniform(*LATENCY_MS), lambda: self._told(error))
