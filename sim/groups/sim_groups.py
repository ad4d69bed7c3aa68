"""Brokers with topics and groups on simulated members, and requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.node import MachineFactory
from quorumlog.store.memory_disk import MemoryDisk
from sim.broker.sim_brokers import CONFIG, SimBrokers

TOPIC, QUEUES = "orders", 3
OPTIONS = GroupOptions(
    first_topics={TOPIC: QUEUES},
    member_timeout_ms=1_500.0,
)
QUICK = replace(CONFIG, message_delay_level="1s " * 17 + "1s")


class SimGroupBrokers(SimBrokers):
    def __init__(self, options: GroupOptions = OPTIONS) -> None:
        super().__init__({})
        self._options = options
        self._tokens = 0

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        def wall_ms() -> float:
            (member,) = [each for each in self.cluster.members if each.member_id == member_id]
            return member.wall_clock_ms()

        groups = GroupService(self._options)
        broker = self._made[member_id] = DLedgerBroker(
            MemoryDisk(),
            "messages",
            QUICK,
            member_id=member_id,
            brokers=self.addresses,
            groups=groups,
            wall_ms=wall_ms,
            token=self._token,
        )
        return broker.machines

    def _token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16, "big")
