"""The service for clients of Kafka on a simulated member, and connections of clients to it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, TypeVar

from quorumlog.config import KafkaOptions
from quorumlog.errors import ProtocolViolation
from quorumlog.kafka.codec import KafkaRequest
from quorumlog.kafka.endpoint import HANDLERS, NOTHING
from quorumlog.kafka.forwarding import LeaderCalls
from quorumlog.kafka.groups import GroupCoordinator, GroupLimits
from quorumlog.kafka.machine import KafkaMachine, KafkaMachines, Offsets
from quorumlog.kafka.places import MACHINE_NAME
from quorumlog.kafka.service import TICK_MS, KafkaCall, KafkaService, Read
from quorumlog.net.access import EVERYBODY, Caller
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.node import MachineFactory
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from quorumlog.testing.promises import Violation
from sim.clients import DataCallback, LostCallback, PortsOpened, SimConnection, SimPorts

T = TypeVar("T")
LIMITS = GroupLimits(least_session_timeout_ms=100, initial_rebalance_delay_ms=200)
"""So that a run of some seconds has many generations."""
AnswerCallback = Callable[[Any], None]


class _Service(KafkaService):
    def read(self, read: Read[T], call: KafkaCall, done: Callable[[T | None], None]) -> None:
        """On the loop: the disk of a simulated member takes no time of anybody's."""

        def begin() -> None:
            try:
                done(read(self.member.node().store.read_bytes) if self.member.is_up else None)
            except OSError:
                done(None)

        self.member.enter(begin, call.client)


class SimKafka(SimPorts):
    """A service for each process of each member."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(1)
        """Never used: see `_Service.read`."""
        self.machines: dict[str, KafkaMachines] = {}
        """Of the newest process of each member."""
        self.services: dict[str, KafkaService] = {}
        """Of members that run."""
        self._ids = count(1)

    def connect(
        self, member: SimMember, on_data: DataCallback, lost: LostCallback
    ) -> SimKafkaConnection:
        return SimKafkaConnection(self, member, lost)

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        def log_begin() -> int:
            service = self.services.get(member_id)
            return 0 if service is None else service.log_begin

        machines = KafkaMachines(lambda: KafkaMachine(lambda grown: None, log_begin))
        self.machines[member_id] = machines
        return {MACHINE_NAME: machines}

    def started(self, member: SimMember) -> None:
        handle = self.handle_of(member)
        service = _Service(
            member.member_id,
            {each: f"{each}:9092" for each in self.cluster.member_ids},
            KafkaOptions("127.0.0.1:9092"),
            self.machines[member.member_id],
            self._threads,
            LeaderCalls(None),
        )
        service.new_coordinator = lambda: GroupCoordinator(lambda: f"{next(self._ids)}", LIMITS)
        service.member = handle
        self.services[member.member_id] = service

        def tick() -> None:
            if handle.is_up:
                service.tick(int(member.local_ms))
                member.later(TICK_MS, tick)

        member.later(TICK_MS, tick)

    def stopped(self, member: SimMember) -> None:
        self.services.pop(member.member_id, None)
        super().stopped(member)


class KafkaWatched(PortsOpened):
    """Opens a service where a process begins. What a group has committed never goes back on a member."""

    def __init__(self, cluster: SimCluster, kafka: SimKafka) -> None:
        super().__init__(cluster, kafka)
        self._kafka = kafka
        self._committed: dict[str, tuple[KafkaMachine, dict[str, Offsets]]] = {}

    def turned(self, member: SimMember) -> None:  # type: ignore[override]
        machine = self._kafka.machines[member.member_id].newest
        if machine is None:
            return
        known, before = self._committed.get(member.member_id, (machine, {}))
        now = {group: dict(offsets) for group, offsets in machine.groups.items()}
        self._committed[member.member_id] = machine, now
        for group, offsets in before.items() if known is machine and machine.groups else ():
            for (_, partition), committed in offsets.items():
                found = [each for place, each in now.get(group, {}).items() if place[1] == partition]
                if not found or found[0].offset < committed.offset:
                    raise Violation(f"{member.member_id}: {group} has gone back in {partition}")


def _handler(api_key: int) -> Callable[[KafkaService, KafkaCall], None]:
    """As its module has it now, which may be with a mistake that a run is to notice."""
    usual = HANDLERS[api_key]
    handler: Callable[[KafkaService, KafkaCall], None] = getattr(
        sys.modules[usual.__module__], usual.__name__
    )
    return handler


class SimKafkaConnection(SimConnection):
    """Answers come in the order of requests, as the real port gives them."""

    def __init__(self, kafka: SimKafka, member: SimMember, lost: LostCallback) -> None:
        super().__init__(kafka, member, FrameDecoder(), lambda data: None, lost)
        self._kafka = kafka
        self._slots: deque[list[Any]] = deque()
        self.user = ""
        self.caller = Caller(EVERYBODY, self)
        self.is_member = False
        self.peer_name = self.host = "client"

    def ask(self, api_key: int, version: int, fields: Any, done: AnswerCallback) -> None:
        """`fields`: of the request; `done` gets those of the answer."""

        def take() -> None:
            service, slot = self._kafka.services[self.member.member_id], list[Any]()
            self._slots.append(slot)

            def answered(values: Any, code: int) -> None:
                slot.append(partial(done, values))
                while self._slots and self._slots[0] and self.is_up:
                    self._tell(self._slots.popleft()[0])

            request = KafkaRequest(api_key, version, 0, "sim", NOTHING, NOTHING)
            _handler(api_key)(service, KafkaCall(request, fields, self, answered))

        self._arrives(take)

    def _tell(self, answer: Callable[[], None]) -> None:
        def arrive() -> None:
            if self._is_read:
                answer()

        self._later("in", arrive)

    def take(self, frame: Frame) -> None:
        raise AssertionError("nothing is sent in frames")

    def left(self) -> None:
        """A member of a group is missed after its session timeout."""

    def violate(self, violation: ProtocolViolation) -> None:
        raise AssertionError(f"what a client said cannot be processed: {violation}")
