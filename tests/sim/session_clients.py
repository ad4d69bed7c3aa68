"""Clients of a simulated cluster that are the product's: its protocol, its joined and streamed appends.

What they send goes through the product's frames to the product's server sessions, over connections that
are cut at any moment: of what is on its way then, a part arrives late, and no answer ever does.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any, cast

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.appending import AppendBatcher, JoinedAppends
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request, receipt_of
from quorumlog.config import DEFAULT_GROUP
from quorumlog.entry import AppendReceipt
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.rpc.calls import LEADER, Link
from quorumlog.net.rpc.view import EventKind
from quorumlog.server.clients.client_session import ClientSession
from quorumlog.server.users_of_server import UsersOfServer
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import PRODUCED, AcknowledgedSequence, ProducedBatch
from quorumlog.testing.promises import Violation
from quorumlog.wire.client_messages import AppendRequest
from sim.log.sessions import SessionDriver, address_of

TICK_MS = 10.0
BETWEEN_MS = 60.0
BETWEEN_CUTS_MS = 300.0
LATENCY_MS = (0.05, 2.0)
LATE_MS = 3_000.0
"""So much later a server may still find what a connection that is gone has brought."""
TIMEOUT_MS = 600_000
"""Beyond the end of the run: nothing is given up, so nothing may stay unknown."""
MOST_UNANSWERED = 12


NO_USERS = UsersOfServer("", dict, is_plain=True)


class _Wire:
    """One connection, of a client to one process of a member."""

    def __init__(self, client: SessionClient, link: Link, member: SimMember, number: int) -> None:
        self.client, self.link, self.member = client, link, member
        self.process = member.process
        self.peer_name = client.name
        self.connection_id = f"{client.name}.{number}"
        self.decoder = FrameDecoder()
        self.session = ClientSession(
            cast(Any, self),
            cast(Any, {DEFAULT_GROUP: SessionDriver(member)}),
            client.close_late,
            NO_USERS,
        )
        self.is_lost = self.is_closed = False
        """As the client sees it; as the server does."""
        self.on_its_way = 0
        self._next_ms = 0.0
        """Both ways: what was sent first arrives first."""
        self._answer_ms = 0.0

    @property
    def stands(self) -> bool:
        return self.member.is_up and self.member.process == self.process

    def deliver(self, frame: Frame) -> None:
        cluster, draw = self.client.cluster, self.client.draw
        self._next_ms = max(self._next_ms, cluster.now_ms + draw.uniform(*LATENCY_MS))
        self.on_its_way += 1
        cluster.at(self._next_ms - cluster.now_ms, partial(self._arrive, frame))

    def _arrive(self, frame: Frame) -> None:
        if not self.is_lost:
            self.on_its_way -= 1
            self.take(frame)
        elif self.on_its_way > 0 and self.client.draw.random() < 0.5:
            self.client.cluster.at(self.client.draw.uniform(0, LATE_MS), partial(self.take, frame))
        else:
            self.on_its_way = 0  # nor anything behind it

    def take(self, frame: Frame) -> None:
        if self.stands:
            self.member.enter(lambda: None if self.is_closed else self._serve(frame))

    def _serve(self, frame: Frame) -> None:
        if not isinstance(frame.message, Hello):
            self.session.frame(frame)
            return
        hello = HelloResponse(
            member_id=self.member.member_id, connection_id=self.connection_id, level=LEVEL
        )
        self.send(DEFAULT_GROUP, hello)

    def send(self, group: str, message: Any, batch: EntryBatch | None = None) -> None:
        """What the server answers."""
        cluster, draw = self.client.cluster, self.client.draw
        self._answer_ms = max(self._answer_ms, cluster.now_ms + draw.uniform(*LATENCY_MS))
        answer = Frame(group, message, batch)
        cluster.at(self._answer_ms - cluster.now_ms, lambda: self.client.heard(self, answer))

    def close(self) -> None:
        """At the server."""
        if not self.is_closed:
            self.is_closed = True
            self.session.lost()


class SessionClient:
    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name, self.cluster = name, cluster
        self.draw: Random = cluster.stream(f"session client {name}")
        self._members = {address_of(member): member for member in cluster.members}
        self._protocol = ClientProtocol(
            list(self._members), group=DEFAULT_GROUP, random=Random(self.draw.random()), producer=name
        )
        self._joiner = AppendBatcher(in_session=True)
        self._stream = self._protocol.new_stream()
        self._is_streaming = name.endswith(("0", "2"))
        self._wires: dict[Link, _Wire] = {}
        self._known_wires: list[_Wire] = []
        """Of any time."""
        self._open: dict[Request, ProducedBatch] = {}
        self._next = 0
        self._dialled = 0

    @property
    def is_settled(self) -> bool:
        return not self._open

    def work(self) -> None:
        self._tick()
        self._go_on()
        self._cut_one()

    def _go_on(self) -> None:
        self.cluster.at(self.draw.expovariate(1 / BETWEEN_MS), self._go_on)
        if self.cluster.clients_work and len(self._open) < MOST_UNANSWERED:
            self._append()

    def _append(self) -> None:
        """Some batches of a stream at once, or some single appends that begin together."""
        if self._is_streaming:
            for _ in range(self.draw.randint(1, 4)):
                bodies = [self._body() for _ in range(self.draw.randint(1, 4))]
                request = Request(
                    AppendRequest(),
                    LEADER,
                    submitted_ms=self.cluster.now_ms,
                    deadline_ms=self.cluster.now_ms + TIMEOUT_MS,
                    batch=EntryBatch.from_bodies(bodies),
                    stream=self._stream,
                    in_session=True,
                )
                self._submit(request, bodies)
            return
        now_ms = self.cluster.now_ms
        for number in range(self.draw.randint(1, 9)):
            self._joiner.add(self._body(), TIMEOUT_MS + number // 4, object(), now_ms)
        for joined in self._joiner.take():
            bodies = list(joined.bodies)
            self._submit(joined.make_request(), bodies)

    def _body(self) -> bytes:
        self._next += 1
        return b"%s:%s:1:%d" % (PRODUCED, self.name.encode(), self._next - 1)

    def _submit(self, request: Request, bodies: list[bytes]) -> None:
        first = int(bodies[0].rpartition(b":")[2])
        batch = ProducedBatch(self.name, 1, first, tuple(bodies))
        self.cluster.operations.produced.append(batch)
        self._open[request] = batch
        self._protocol.submit(request, self.cluster.now_ms)
        self._carry_out()

    # ---------------------------------------------------------------- connections

    def _tick(self) -> None:
        self.cluster.at(TICK_MS, self._tick)
        for link, wire in list(self._wires.items()):
            if not wire.stands:
                self._lose(link)
        self._protocol.advance(self.cluster.now_ms)
        self._carry_out()

    def _cut_one(self) -> None:
        self.cluster.at(self.draw.expovariate(1 / BETWEEN_CUTS_MS), self._cut_one)
        if self._wires and self.cluster.is_faulty:
            busy = [link for link in self._wires if link.pending] or list(self._wires)
            self.cluster.trace.count("session client: a connection is cut")
            if any(request in self._open for request in busy[0].pending.values()):
                self.cluster.trace.count("session client: appends were on their way")
            self._lose(busy[0])
            self._carry_out()

    def _lose(self, link: Link) -> None:
        wire = self._wires.pop(link)
        wire.is_lost = True
        wire.on_its_way = self.draw.randint(0, wire.on_its_way)

        def ends() -> None:
            if wire.stands:
                wire.member.enter(wire.close)

        self.cluster.at(LATE_MS + 10.0, ends)
        self._protocol.link_lost(link, "reset", self.cluster.now_ms)

    def close_late(self, connection_id: str) -> None:
        """A later connection says that this one is over."""
        for wire in self._known_wires:
            if wire.connection_id == connection_id and wire.stands:
                wire.close()

    def _carry_out(self) -> None:
        now_ms = self.cluster.now_ms
        work = self._protocol.take_work()
        for event in work.events:
            if event.kind is EventKind.SET_BACK:  # no disk here loses what it has synced
                raise Violation(f"a client takes entries for lost: {event.reason}")
        for request in work.completed:
            self._completed(request)
        for link in work.close:
            if link in self._wires:
                self._lose(link)
        for link in work.write:
            wire = self._wires.get(link)
            if wire is not None:
                for frame in wire.decoder.receive_data(b"".join(link.outbox)):
                    wire.deliver(frame)
                link.outbox.clear()
        for link in work.dial:
            member = self._members[link.address]
            if not member.is_up or member.is_paused:
                self._protocol.link_lost(link, "connection refused", now_ms)
                continue
            self._dialled += 1
            wire = self._wires[link] = _Wire(self, link, member, self._dialled)
            self._known_wires.append(wire)
            self._protocol.link_connected(link, now_ms)
        if work.dial or work.write:
            self._carry_out()

    def heard(self, wire: _Wire, frame: Frame) -> None:
        if self._wires.get(wire.link) is wire:
            self._protocol.frames_received(wire.link, [frame], self.cluster.now_ms)
            self._carry_out()

    def _completed(self, request: Request) -> None:
        batch = self._open.pop(request, None)
        if batch is None:
            return
        self.cluster.trace.count(f"session client: {type(request.error).__name__}")
        if request.error is not None:
            raise Violation(f"{self.name}: {batch} has ended with {request.error!r}")
        receipt = receipt_of(request)
        if receipt.ranges:
            self.cluster.trace.count("session client: a receipt of two parts")
        if isinstance(request.context, JoinedAppends):
            places = [index for part in receipt.parts for index in part.indices]
            own = [each.first_index for each in _receipts(request.context)]
            if own != places:
                raise Violation(f"{self.name}: joined appends at {places} were told {own}")
        batch.receipts.append(receipt)
        last = batch.first_sequence + len(batch.bodies) - 1
        self.cluster.operations.reported_sequences.append(AcknowledgedSequence(self.name, last))


def _receipts(joined: JoinedAppends) -> list[AppendReceipt]:
    return [each for each in joined.outcomes() if isinstance(each, AppendReceipt)]
