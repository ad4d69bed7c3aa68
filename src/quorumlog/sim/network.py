"""SimNetwork: connections between members, and everything that can happen to what they carry.

Two members are connected or not; `node.connected` and `node.connection_lost` reach each of them in its
own time. What is sent on one connection never arrives on a later one. Messages go through the wire
codec: what arrives was encoded and decoded by the code that real members use.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import msgspec

from quorumlog.config import DEFAULT_GROUP
from quorumlog.consensus.messages import Message, goes_with_data
from quorumlog.consensus.ready import Envelope
from quorumlog.sim.pipe import Pipe
from quorumlog.wire.framing import FrameDecoder, encode_frame
from quorumlog.wire.peer_hello import refusal_of

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimCluster
    from quorumlog.sim.member import SimMember

GIVE_UP_MS = 5000.0
"""A connection whose bytes get nowhere for so long is given up, as TCP_USER_TIMEOUT does it."""


class Link:
    """Between two members, `first` < `second` by id."""

    __slots__ = ("broken", "epoch", "first", "is_up", "second")

    def __init__(self, first: str, second: str) -> None:
        self.first = first
        self.second = second
        self.is_up = False
        self.epoch = 0
        """Counts connections; what was sent on an older one is dropped on arrival."""
        self.broken = False
        """Bytes were lost inside the stream: it cannot go on once the cut ends."""


class SimNetwork:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._weather = cluster.weather
        self._random = cluster.random
        ids = [member.member_id for member in cluster.members]
        self._links = {pair: Link(*pair) for pair in combinations(ids, 2)}
        self.cut: set[tuple[str, str]] = set()
        """(from, to): nothing passes that way."""
        self._held: list[tuple[SimMember, Envelope, bytes, Link, int]] = []
        self._last_arrival: dict[tuple[str, str], float] = {}
        self._decoder = FrameDecoder()
        self.pipes = {way: Pipe(cluster, partial(self._stuck, *way)) for way in permutations(ids, 2)}
        """By (from, to): what data passes through before anything else happens to it."""
        self._moved: set[tuple[str, str]] = set()
        """(from, to) of entries that have arrived since the sender last asked."""

    def _link(self, one: str, other: str) -> Link:
        return self._links[(one, other) if one < other else (other, one)]

    @property
    def _is_rough(self) -> bool:
        return self._cluster.is_faulty

    def _delay_ms(self) -> float:
        delay_ms = self._random.uniform(0.02, self._weather.delay_ms if self._is_rough else 1.0)
        if self._is_rough and self._random.random() < self._weather.jitter:
            delay_ms *= 10
        return delay_ms

    # ---------------------------------------------------------------- connections

    def started(self, member: SimMember) -> None:
        for link in self._links_of(member.member_id):
            self._dial_later(link)

    def gone(self, member: SimMember, *, silently: bool) -> None:
        """Its process ended; `silently`: with its machine, so nobody is told before it answers again."""
        for link in self._links_of(member.member_id):
            if not link.is_up:
                continue
            link.is_up = False
            link.epoch += 1
            other = link.second if link.first == member.member_id else link.first
            after_ms = self._random.uniform(0, GIVE_UP_MS if silently else 2 * self._delay_ms())
            self._lose_later(other, member.member_id, after_ms, closed_by_peer=not silently)

    def reset(self, one: str, other: str, *, closed_by: str | None) -> None:
        """The connection breaks; both ends are told, each in its time."""
        link = self._link(one, other)
        if not link.is_up:
            return
        link.is_up = False
        link.epoch += 1
        for me, peer in ((one, other), (other, one)):
            self._lose_later(me, peer, self._delay_ms(), closed_by_peer=closed_by == peer)
        self._dial_later(link)

    def _links_of(self, member_id: str) -> list[Link]:
        return [link for pair, link in self._links.items() if member_id in pair]

    def _lose_later(self, me: str, peer: str, after_ms: float, *, closed_by_peer: bool) -> None:
        member = self._cluster.member(me)
        process = member.process
        told_of = member.connected_to.get(peer)

        def lose() -> None:
            if member.process == process and member.connected_to.get(peer) == told_of is not None:
                del member.connected_to[peer]
                member.enter_node("connection_lost", peer, closed_by_peer)

        if told_of is not None:
            self._cluster.at(after_ms, lose)

    def _dial_later(self, link: Link) -> None:
        epoch = link.epoch
        self._cluster.at(self._random.uniform(1, 30), lambda: self._dial(link, epoch))

    def _dial(self, link: Link, epoch: int) -> None:
        one, other = self._cluster.member(link.first), self._cluster.member(link.second)
        if link.is_up or link.epoch != epoch or not (one.is_up and other.is_up):
            return
        blocked = {(link.first, link.second), (link.second, link.first)} & self.cut
        unaware = one.connected_to.get(link.second) or other.connected_to.get(link.first)
        refusal = "" if blocked else self._refusal_between(one, other)
        if blocked or one.is_paused or other.is_paused or unaware or refusal:
            # An end that still believes in the old connection learns of its end by this very dial.
            if unaware and not blocked:
                self._lose_later(link.first, link.second, 0, closed_by_peer=True)
                self._lose_later(link.second, link.first, 0, closed_by_peer=True)
            self._cluster.at(self._random.uniform(20, 200), lambda: self._dial(link, epoch))
            return
        link.is_up = True
        link.broken = False
        link.epoch += 1
        for me, peer in ((one, other), (other, one)):
            self.pipes[me.member_id, peer.member_id].look()
            me.connected_to[peer.member_id] = (link.epoch, peer.voter.directory_id)
            me.enter_node("connected", peer.member_id, peer.voter.directory_id)

    def _refusal_between(self, one: SimMember, other: SimMember) -> str:
        """Why one of them refuses the other in its first frame; empty if both are welcome."""
        for host, guest in ((one, other), (other, one)):
            refusal = refusal_of(guest.hello(host), host.hello_response(), DEFAULT_GROUP)
            if refusal:
                self._cluster.trace.count("dial: refused")
                host.note(f"refuses {guest.member_id}", refusal)
                return refusal
        return ""

    # ---------------------------------------------------------------- messages

    def moving_data_of(self, sender: SimMember) -> Iterable[str]:
        """See `World.members_with_moving_data`."""
        outward = [way for way in self.pipes if way[0] == sender.member_id]
        moving = [to for me, to in outward if (me, to) in self._moved or self.pipes[me, to].is_moving]
        self._moved.difference_update(outward)
        return moving

    def _stuck(self, from_id: str, to_id: str) -> None:
        link, pipe = self._link(from_id, to_id), self.pipes[from_id, to_id]
        epoch = link.epoch

        def give_up() -> None:
            if link.epoch == epoch and pipe.is_stuck:
                self.reset(link.first, link.second, closed_by=None)

        self._cluster.at(GIVE_UP_MS, give_up)

    def send(self, sender: SimMember, envelope: Envelope) -> bool:
        """False if the connection has no room for it."""
        to = envelope.to
        link = self._link(sender.member_id, to.member_id)
        known = sender.connected_to.get(to.member_id)
        if not link.is_up or known != (link.epoch, to.directory_id):
            return True
        data = b"".join(encode_frame(DEFAULT_GROUP, envelope.message))
        pipe, epoch = self.pipes[sender.member_id, to.member_id], link.epoch
        if not goes_with_data(envelope.message) or not pipe.is_limited:
            self._send(sender, envelope, data, link)
        elif pipe.has_room:
            pipe.put(
                len(data),
                lambda: link.epoch == epoch,
                lambda: self._send(sender, envelope, data, link),
            )
        else:
            self._cluster.trace.count("link: full")
            return False
        return True

    def _send(self, sender: SimMember, envelope: Envelope, data: bytes, link: Link) -> None:
        to = envelope.to
        self._cluster.trace.bytes_sent(data)
        if (sender.member_id, to.member_id) in self.cut:
            self._into_cut(sender, envelope, data, link)
            return
        if self._is_rough and self._random.random() < self._weather.loss:
            return
        self._deliver_later(sender, envelope, data, link, link.epoch)
        if self._is_rough and self._random.random() < self._weather.repeat:
            self._deliver_later(sender, envelope, data, link, link.epoch)

    def _into_cut(self, sender: SimMember, envelope: Envelope, data: bytes, link: Link) -> None:
        if self._weather.holds_cut_messages:
            self._held.append((sender, envelope, data, link, link.epoch))
        else:
            link.broken = True
        epoch = link.epoch

        def give_up() -> None:
            if link.epoch == epoch and (sender.member_id, envelope.to.member_id) in self.cut:
                self.reset(link.first, link.second, closed_by=None)

        self._cluster.at(GIVE_UP_MS, give_up)

    def heal(self, ways: set[tuple[str, str]]) -> None:
        """These ways are open again."""
        self.cut -= ways
        for link in self._links.values():
            both = {(link.first, link.second), (link.second, link.first)}
            if link.broken and both & ways and not both & self.cut:
                link.broken = False
                self.reset(link.first, link.second, closed_by=None)
        held, self._held = self._held, []
        for message in held:
            sender, envelope = message[:2]
            if (sender.member_id, envelope.to.member_id) in self.cut:
                self._held.append(message)
            else:
                self._deliver_later(*message)

    def _deliver_later(
        self, sender: SimMember, envelope: Envelope, data: bytes, link: Link, epoch: int
    ) -> None:
        way = (sender.member_id, envelope.to.member_id)
        arrival_ms = self._cluster.now_ms + self._delay_ms()
        if self._weather.in_order or not self._is_rough:
            arrival_ms = max(arrival_ms, self._last_arrival.get(way, 0.0))
            self._last_arrival[way] = arrival_ms
        voter = sender.voter

        def deliver() -> None:
            receiver = self._cluster.member(way[1])
            if link.epoch != epoch or not receiver.is_up:
                return
            if receiver.connected_to.get(way[0]) != (epoch, voter.directory_id):
                return
            if getattr(envelope.message, "entries", None) is not None:
                self._moved.add(way)
            message = self._decoder.receive_data(data)[0].message
            assert isinstance(message, Message), message
            msgspec.structs.force_setattr(message, "sender", voter)
            receiver.enter(lambda: receiver.receive(message))

        self._cluster.at(arrival_ms - self._cluster.now_ms, deliver)
