"""Clients in virtual time: the engine of all clients, with a hand for simulated connections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from quorumlog.entry_header import Buffer
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.rpc.calls import Call, Link, LinkState, RequestTarget, TargetKind
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.timings import Timings
from quorumlog.node import MachineFactory, NodeHandle
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from quorumlog.testing.promises import Checker

LATENCY_MS = (0.05, 2.0)
BREAKS = 0.05
"""How often a client's newest connection breaks before it asks for something."""
STALLS, STALL_MS = 0.01, 600.0
"""How often something is held up, with all after it, and for how long at most."""
LOSES = 0.5
"""How often a connection that ends takes with it what is on its way."""
DataCallback = Callable[[bytes], None]
LostCallback = Callable[[], None]


def address_of(member_id: str) -> str:
    return f"{member_id}:1"


def asked_alone(member_id: str) -> RequestTarget:
    return RequestTarget(TargetKind.ADDRESS, address_of(member_id))


class SimPorts(ABC):
    """What members serve clients with; `cluster` is set once it is made."""

    def __init__(self) -> None:
        self.cluster: SimCluster
        self.connections: list[SimConnection] = []
        self.stalls = 0.0
        """See `STALLS`."""

    @abstractmethod
    def connect(self, member: SimMember, on_data: DataCallback, lost: LostCallback) -> SimConnection: ...

    @abstractmethod
    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        """Of the next process of a member."""

    @abstractmethod
    def started(self, member: SimMember) -> None: ...

    def stopped(self, member: SimMember) -> None:
        """Its process has ended."""
        for connection in self.connections:
            if connection.member is member:
                connection.break_off()

    @staticmethod
    def handle_of(member: SimMember) -> NodeHandle:
        """Of the process that it is now, and of none after it."""
        process, node = member.process, member.node

        def is_up() -> bool:
            return member.process == process and member.is_up and member.node is node

        return NodeHandle(
            lambda: node if is_up() else None, lambda act: member.enter(act) if is_up() else None
        )


class PortsOpened(Checker):
    """Opens the ports of a process that begins; what derives from it checks what stands behind them."""

    def __init__(self, cluster: SimCluster, ports: SimPorts) -> None:
        super().__init__(cluster)
        self._ports = ports

    def started(self, member: SimMember) -> None:  # type: ignore[override]
        self._ports.started(member)

    def stopped(self, member: SimMember) -> None:  # type: ignore[override]
        self._ports.stopped(member)


class SimConnection(ABC):
    """Of a client to the process that a member is now. What is sent arrives in order, also when who has
    sent it is gone: machines have it for a process that is paused, and of one that was killed."""

    def __init__(
        self,
        ports: SimPorts,
        member: SimMember,
        decoder: FrameDecoder,
        on_data: DataCallback,
        lost: LostCallback,
    ) -> None:
        self._cluster = ports.cluster
        self._stalls = ports.stalls
        self.member = member
        self._process = member.process
        self._on_data = on_data
        self._lost = lost
        self._random = self._cluster.stream(f"session {len(ports.connections)} of {member.member_id}")
        self._to_member = decoder
        self._arriving: deque[Callable[[], None]] = deque()
        """At the member."""
        self._last_ms = {"out": 0.0, "in": 0.0}
        self._sent: dict[str, deque[Callable[[], None]]] = {"out": deque(), "in": deque()}
        self.is_up = True
        """As the member sees it."""
        self._is_read = True
        """By the client."""
        ports.connections.append(self)

    @abstractmethod
    def take(self, frame: Frame) -> None:
        """At the member."""

    @abstractmethod
    def left(self) -> None:
        """At the member: the client has gone."""

    def _later(self, way: str, act: Callable[[], None]) -> None:
        now_ms = self._cluster.now_ms
        takes_ms = self._random.uniform(*LATENCY_MS)
        if self._stalls and self._random.random() < self._stalls:
            takes_ms += self._random.uniform(0, STALL_MS)
        at_ms = max(self._last_ms[way], now_ms + takes_ms)
        self._last_ms[way] = at_ms
        self._sent[way].append(act)
        self._cluster.at(at_ms - now_ms, partial(self._pass, way))

    def _pass(self, way: str) -> None:
        """The first of what is under way; by a rounded time a later one might be there before."""
        self._sent[way].popleft()()

    def _arrives(self, act: Callable[[], None]) -> None:
        """At the member, once it is not paused."""

        def arrive() -> None:
            if not self.is_up or not self.member.is_up or self.member.process != self._process:
                return
            if self.member.is_paused:  # which connection is read first then nobody knows
                wait_ms = self._random.uniform(*LATENCY_MS)
                self.member.later(0.0, lambda: self._cluster.at(wait_ms, arrive))
            elif self._arriving:
                self._arriving.popleft()()

        self._arriving.append(act)
        self._later("out", arrive)

    def write(self, data: bytes) -> None:
        """Of the client."""

        def take() -> None:
            for frame in self._to_member.receive_data(data):
                self.take(frame)

        self._arrives(take)

    def say(self, buffers: Sequence[Buffer]) -> None:
        """Of the member."""
        data = b"".join(buffers)

        def arrive() -> None:
            if self._is_read:
                self._on_data(data)

        self._later("in", arrive)

    def _loses(self) -> bool:
        return self._random.random() < LOSES

    def break_off(self) -> None:
        """Of the member: the client learns of it a moment later."""
        if self.is_up:
            self.is_up = False
            self._is_read = self._is_read and not self._loses()
            self._later("in", self._lost)

    def leave(self) -> None:
        """Of the client: the member learns of it a moment later."""
        if not self._is_read:
            return
        self._is_read = False
        if self._loses():
            self._arriving.clear()

        def end() -> None:
            self.is_up = False
            self.left()

        self._arrives(end)

    def get_extra_info(self, name: str) -> Any:
        """As of a transport."""
        return None


class SimCalls:
    def __init__(
        self, ports: SimPorts, product: Product, random: Random, timings: Timings | None = None
    ) -> None:
        self._ports = ports
        self._cluster = ports.cluster
        self._random = random
        self._members = {address_of(each.member_id): each for each in ports.cluster.members}
        self._protocol = RpcProtocol([*self._members], product, random=random, timings=timings)
        self._wakes_ms = float("inf")
        self._newest: Link | None = None
        """Of the connections."""

    def submit(self, call: Call) -> None:
        """`context` is called with it once it is done."""
        self._protocol.submit(call, self._cluster.now_ms)
        self._carry_out()

    def break_sometimes(self) -> None:
        if self._newest is not None and self._random.random() < BREAKS:
            self._newest.context.leave()
            self._lost(self._newest)

    def _carry_out(self) -> None:
        work = self._protocol.take_work()
        for call in work.completed:
            call.context(call)
        for link in work.close:
            if link.context is not None:
                link.context.leave()
        for link in work.dial:
            self._cluster.at(self._random.uniform(*LATENCY_MS), partial(self._dial, link))
        for link in work.write:
            if link.context is not None:
                link.context.write(b"".join(link.outbox))
                link.outbox.clear()
        wakes_ms = self._protocol.next_wakeup_ms()
        if wakes_ms < self._wakes_ms:
            self._wakes_ms = wakes_ms
            wait_ms = max(0.0, wakes_ms - self._cluster.now_ms)
            self._cluster.at(wait_ms, partial(self._wake, wakes_ms))

    def _wake(self, wakes_ms: float) -> None:
        if wakes_ms == self._wakes_ms:
            self._wakes_ms = float("inf")
            self._protocol.advance(self._cluster.now_ms)
            self._carry_out()

    def _dial(self, link: Link) -> None:
        if link.state is LinkState.CLOSED:
            return
        member = self._members[link.address]
        if member.is_up:
            link.context = self._ports.connect(
                member, partial(self._came, link), partial(self._lost, link)
            )
            self._newest = link
            self._protocol.link_connected(link, self._cluster.now_ms)
            self._carry_out()
        else:
            self._lost(link)

    def _came(self, link: Link, data: bytes) -> None:
        if link.state is not LinkState.CLOSED:
            frames = link.decoder.receive_data(data)
            self._protocol.frames_received(link, frames, self._cluster.now_ms)
            self._carry_out()

    def _lost(self, link: Link) -> None:
        if link.state is not LinkState.CLOSED:
            self._protocol.link_lost(link, "reset", self._cluster.now_ms)
            self._carry_out()
