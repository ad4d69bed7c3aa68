"""The store's service on a simulated member, and connections of clients to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from quorumlog.kv.requests.messages import (
    GROUP,
    Request,
    Response,
    request_decoder,
)
from quorumlog.kv.service.service import TICK_MS, KeyValueService, StoreOptions
from quorumlog.kv.store.changes import Change, Ended, Feed
from quorumlog.kv.store.machine import MACHINE_NAME, KeyValueMachine, KeyValueMachines
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from quorumlog.testing.promises import Checker
from sim.kv.histories import Histories

LATENCY_MS = (0.05, 2.0)


class _NotingFeed(Feed):
    def __init__(self, cluster: SimCluster, histories: Histories) -> None:
        super().__init__()
        self._cluster = cluster
        self._histories = histories

    def tell(self, items: list[Change]) -> None:
        for item in items:
            if isinstance(item, Ended):
                self._histories.ended_ms.setdefault(item.lease, self._cluster.now_ms)
        super().tell(items)


class SimDoors:
    """A service for each process of each member; `cluster` is set once it is made."""

    def __init__(self, options: StoreOptions, histories: Histories) -> None:
        self._options = options
        self._histories = histories
        self.cluster: SimCluster
        self._feeds: dict[str, Feed] = {}
        self.machines: dict[str, KeyValueMachine] = {}
        """The newest of each member."""
        self.services: dict[str, KeyValueService] = {}
        self.sessions: dict[SimSession, str] = {}

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        def make() -> KeyValueMachine:
            machine = self.machines[member_id] = KeyValueMachine(
                feed=self._feeds[member_id], slice_items=3
            )
            return machine

        return {MACHINE_NAME: KeyValueMachines(make)}

    def started(self, member: SimMember) -> None:
        process, node = member.process, member.node

        def of_now() -> bool:
            return member.process == process and member.is_up and member.node is node

        feed = self._feeds[member.member_id] = _NotingFeed(self.cluster, self._histories)
        door = DoorMember(
            lambda: node if of_now() else None, lambda act: member.enter(act) if of_now() else None
        )
        service = KeyValueService(door, feed, self._options, lambda: member.local_ms)
        self.services[member.member_id] = service
        # The thread that applies hands over; the loop looks a moment later.
        feed.wake = lambda: member.later(0.0, service.drain) if of_now() else None

        def tick() -> None:
            service.tick()
            member.later(TICK_MS, tick)

        member.later(TICK_MS, tick)

    def stopped(self, member: SimMember) -> None:
        self.services.pop(member.member_id, None)
        self._feeds[member.member_id] = Feed()
        for session in [s for s, of in self.sessions.items() if of == member.member_id]:
            session.break_off()


class DoorsOpen(Checker):
    """No checker: it opens a door where a process begins."""

    def __init__(self, cluster: SimCluster, doors: SimDoors) -> None:
        super().__init__(cluster)
        self._doors = doors

    def started(self, member: SimMember) -> None:  # type: ignore[override]
        self._doors.started(member)

    def stopped(self, member: SimMember) -> None:  # type: ignore[override]
        self._doors.stopped(member)


class SimSession:
    """A connection of a client to the process that a member is now; what is sent arrives in order."""

    def __init__(
        self,
        doors: SimDoors,
        member: SimMember,
        told: Callable[[bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self._doors = doors
        self._cluster = doors.cluster
        self.member = member
        self._process = member.process
        self._told = told
        self._lost = lost
        self._random = self._cluster.stream(f"session {len(doors.sessions)} of {member.member_id}")
        self._to_member = request_decoder()
        self._last_ms = {"out": 0.0, "in": 0.0}
        self.is_up = True
        doors.sessions[self] = member.member_id

    def _later(self, way: str, act: Callable[[], None]) -> None:
        now_ms = self._cluster.now_ms
        at_ms = max(self._last_ms[way], now_ms + self._random.uniform(*LATENCY_MS))
        self._last_ms[way] = at_ms
        self._cluster.at(at_ms - now_ms, act)

    def write(self, data: bytes) -> None:
        """Of the client."""

        def arrive() -> None:
            member = self.member
            if not self.is_up or member.process != self._process or not member.is_up:
                return
            if member.is_paused:
                member.later(0.0, arrive)
                return
            service = self._doors.services[member.member_id]
            for each in self._to_member.receive_data(data):
                if isinstance(each.message, Hello):
                    service.greet(self, each.message.cluster_id, self.send)
                else:
                    service.request(self, cast(Request, each.message))

        self._later("out", arrive)

    def send(self, message: HelloResponse | Response) -> None:
        """Of the service."""
        data = b"".join(encode_frame(GROUP, message))

        def arrive() -> None:
            if self.is_up:
                self._told(data)

        self._later("in", arrive)

    @property
    def unsent_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        """By the member."""
        self.break_off()

    def break_off(self) -> None:
        """The client learns of it a moment later."""
        if self.is_up:
            self.is_up = False
            self._cluster.at(self._random.uniform(*LATENCY_MS), self._lost)

    def leave(self) -> None:
        """Of the client."""
        if self.is_up:
            self.is_up = False
            service = self._doors.services.get(self.member.member_id)
            if service is not None and self.member.process == self._process:
                service.lost(self)
