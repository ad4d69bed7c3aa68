"""The store's service on a simulated member, and connections of clients to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from quorumlog.kv.requests import (
    GROUP,
    Request,
    Response,
    request_decoder,
)
from quorumlog.kv.service import TICK_MS, KeyValueService, StoreOptions
from quorumlog.kv.store.keyspace import Ended, Feed, StoreChange
from quorumlog.kv.store.machine import MACHINE_NAME, KeyValueMachine, KeyValueMachines
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.node import MachineFactory
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from sim.clients import DataCallback, LostCallback, SimConnection, SimPorts
from sim.kv.histories import Histories


class _NotingFeed(Feed):
    def __init__(self, cluster: SimCluster, histories: Histories) -> None:
        super().__init__()
        self._cluster = cluster
        self._histories = histories

    def tell(self, items: list[StoreChange]) -> None:
        for item in items:
            if isinstance(item, Ended):
                self._histories.ended_ms.setdefault(item.lease, self._cluster.now_ms)
        super().tell(items)


class SimEndpoints(SimPorts):
    """A service for each process of each member."""

    def __init__(self, options: StoreOptions, histories: Histories) -> None:
        super().__init__()
        self._options = options
        self._histories = histories
        self._feeds: dict[str, Feed] = {}
        self.machines: dict[str, KeyValueMachine] = {}
        """The newest of each member."""
        self.services: dict[str, KeyValueService] = {}

    def connect(self, member: SimMember, on_data: DataCallback, lost: LostCallback) -> SimSession:
        return SimSession(self, member, on_data, lost)

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        def make() -> KeyValueMachine:
            machine = self.machines[member_id] = KeyValueMachine(
                feed=self._feeds[member_id], slice_items=3
            )
            return machine

        return {MACHINE_NAME: KeyValueMachines(make)}

    def started(self, member: SimMember) -> None:
        feed = self._feeds[member.member_id] = _NotingFeed(self.cluster, self._histories)
        handle = self.handle_of(member)
        service = KeyValueService(handle, feed, self._options, lambda: member.local_ms)
        self.services[member.member_id] = service
        # The thread that applies hands over; the loop looks a moment later.
        feed.wake = lambda: member.later(0.0, service.drain) if handle.is_up else None

        def tick() -> None:
            service.tick()
            member.later(TICK_MS, tick)

        member.later(TICK_MS, tick)

    def stopped(self, member: SimMember) -> None:
        self.services.pop(member.member_id, None)
        self._feeds[member.member_id] = Feed()
        super().stopped(member)


class SimSession(SimConnection):
    """As the service sees it."""

    def __init__(
        self, endpoints: SimEndpoints, member: SimMember, on_data: DataCallback, lost: LostCallback
    ) -> None:
        super().__init__(endpoints, member, request_decoder(), on_data, lost)
        self._endpoints = endpoints

    def refusal_to_read(self, keys: list[bytes]) -> None:
        """There are no users."""

    def take(self, frame: Frame) -> None:
        service, message = self._endpoints.services[self.member.member_id], frame.message
        if isinstance(message, Hello):
            service.greet(self, message.cluster_id, self.send)
        else:
            service.request(self, cast(Request, message))

    def send(self, message: HelloResponse | Response) -> None:
        self.say(encode_frame(GROUP, message))

    @property
    def unsent_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        """By the member."""
        self.break_off()

    def left(self) -> None:
        service = self._endpoints.services.get(self.member.member_id)
        if service is not None:
            service.lost(self)
