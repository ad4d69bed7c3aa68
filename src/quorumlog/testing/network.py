"""Connections between simulated members: messages late, lost, twice, cut, and as slow as a link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations, permutations
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from quorumlog.config import DEFAULT_GROUP
from quorumlog.consensus.messages import PeerMessage, carries_push
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.peer_hello import refusal_of
from quorumlog.node.peer_connections import WAYS, PeerConnections, Way, role_of

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember


OPEN_SHARE = 0.2
"""Of the time, a way that is open in bursts lets frames through."""

PipeItem = tuple[int, Callable[[], bool], Callable[[], None], bool]
"""(bytes, whether its connection is open, callback after it has passed, is it a push)."""


class Pipe:
    """What one member sends another on its data connection, while the way there is a poor one.

    Bytes wait in a queue and leave it in order: so many a millisecond, or in bursts. A frame that is too
    large for the way never leaves it, nor does what is after it; heartbeats pass beside it."""

    def __init__(self, cluster: SimCluster, on_stuck: Callable[[], None]) -> None:
        """`on_stuck`: a frame is at its front that will not pass as long as the way is as it is."""
        self._cluster = cluster
        self._on_stuck = on_stuck
        self._queue: deque[PipeItem] = deque()
        self._queued_bytes = 0
        self._turn = 0
        """Counts what the front waits for; an older event is none of its."""
        self.limits(None)

    def limits(
        self,
        bytes_per_ms: float | None,
        *,
        burst_ms: float = 0.0,
        largest_bytes: int | None = None,
        room_bytes: int | None = None,
    ) -> None:
        """From now on; None is no limit. `burst_ms`: bytes pass only at the start of each such interval.
        `room_bytes`: queued before a sender finds its connection full."""
        self._bytes_per_ms = bytes_per_ms
        self._burst_ms = burst_ms
        self._largest_bytes = largest_bytes
        self._room_bytes = room_bytes
        self.advance()

    @property
    def is_limited(self) -> bool:
        limits = self._bytes_per_ms, self._burst_ms or None, self._largest_bytes
        return bool(self._queue) or any(limit is not None for limit in limits)

    @property
    def has_room(self) -> bool:
        return self._room_bytes is None or self._queued_bytes <= self._room_bytes

    @property
    def is_stuck(self) -> bool:
        largest_bytes = self._largest_bytes
        return bool(self._queue) and largest_bytes is not None and self._queue[0][0] > largest_bytes

    @property
    def is_moving(self) -> bool:
        """As long as a push is in it."""
        return any(is_push for *_, is_push in self._queue) and not self.is_stuck

    def put(
        self,
        size_bytes: int,
        is_open: Callable[[], bool],
        passed: Callable[[], None],
        *,
        is_push: bool,
    ) -> None:
        self._queue.append((size_bytes, is_open, passed, is_push))
        self._queued_bytes += size_bytes
        if len(self._queue) == 1:
            self.advance()

    def advance(self) -> None:
        """Re-examine the head: messages of a lost connection leave the queue."""
        self._turn += 1
        while self._queue and not self._queue[0][1]():
            self._take()
        if not self._queue:
            return
        if self.is_stuck:
            self._on_stuck()
            return
        after_ms = self._queue[0][0] / self._bytes_per_ms if self._bytes_per_ms is not None else 0.0
        if self._burst_ms:
            phase_ms = self._cluster.now_ms % self._burst_ms
            if phase_ms > OPEN_SHARE * self._burst_ms:
                after_ms += self._burst_ms - phase_ms
        turn = self._turn

        def leave() -> None:
            if self._turn == turn:
                _, is_open, passed, _ = self._take()
                if is_open():
                    passed()
                self.advance()

        self._cluster.at(after_ms, leave)

    def _take(self) -> PipeItem:
        item = self._queue.popleft()
        self._queued_bytes -= item[0]
        return item


# ----------------------------------------------------------------
# The four connections between two members, and what each end knows of them.

ROLES = ("control", "data")
Direction = tuple[str, str]
"""(from, to): the places of two members."""


class OpenConnection(NamedTuple):
    """A connection that an end knows of."""

    epoch: int
    """Of the pair."""
    number: int
    """Of this one of the four, within the epoch."""
    directory_id: str
    """At the other end."""


class End:
    """Of one process, for one other member."""

    __slots__ = ("connections", "standing")

    def __init__(self, member: SimMember, peer_id: str) -> None:
        self.connections = PeerConnections(
            peer_id,
            lambda replica: member.enter_node("connected", replica),
            lambda replica, is_gone: member.enter_node("connection_lost", replica, is_gone),
        )
        self.standing: dict[Way, OpenConnection] = {}

    def opened(self, way: Way, standing: OpenConnection) -> None:
        self.standing[way] = standing
        self.connections.opened(way, standing.directory_id)

    def broke(self, way: Way) -> None:
        self.standing.pop(way, None)
        self.connections.broke(way)


class SimLink:
    """Between two members, `first` < `second` by place."""

    __slots__ = ("broken", "epoch", "first", "is_up", "numbers", "second")

    def __init__(self, first: str, second: str) -> None:
        self.first = first
        self.second = second
        self.is_up = False
        self.epoch = 0
        """Counts connections; messages of an older one are dropped on arrival."""
        self.broken = False
        """Bytes were lost inside the stream: it cannot continue once the cut ends."""
        self.numbers = {(dialler, role): 0 for dialler in (first, second) for role in ROLES}
        """Number of resets of each of the four connections, by the dialling member."""

    def take_down(self) -> bool:
        """False if it was down."""
        was_up, self.is_up = self.is_up, False
        self.epoch += was_up
        return was_up

    def standing(self, dialler: str, role: str, directory_id: str) -> OpenConnection:
        return OpenConnection(self.epoch, self.numbers[dialler, role], directory_id)


class Parcel(NamedTuple):
    """A message on its way, and the connection that it was given to."""

    sender: SimMember
    envelope: Envelope
    data: bytes
    link: SimLink
    standing: OpenConnection
    to_place: str

    @property
    def way(self) -> Direction:
        return self.sender.place, self.to_place

    def is_open(self) -> bool:
        """At the end of the sender."""
        role = role_of(self.envelope.message)
        return self.link.standing(self.way[0], role, self.standing.directory_id) == self.standing


# ---------------------------------------------------------------- SimNetwork
# Connections between members, and everything that can happen to what they carry.
#
# What the four connections of a pair add up to, each end decides with the code of real members
# (`node/peer_connections.py`), and each hears of their ends in its own time. What is sent on one
# connection never arrives on a later one. Messages are encoded and decoded as those of real members.

GIVE_UP_MS = 5000.0
"""A connection whose bytes get nowhere for so long is given up, as TCP_USER_TIMEOUT does it."""
GREETING_MS = (0.1, 3.0, 30.0)
"""Where connections come up one by one, each half of a greeting takes up to one of these."""


class SimNetwork:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._profile = cluster.profile
        self._random = cluster.random
        self._chance = cluster.stream("greetings")
        ids = [member.place for member in cluster.members]
        self._links = {pair: SimLink(*pair) for pair in combinations(ids, 2)}
        self.cut: set[Direction] = set()
        """Nothing passes there."""
        self._held: list[Parcel] = []
        self._last_arrival: dict[tuple[str, ...], float] = {}
        self._decoder = FrameDecoder()
        self.pipes = {way: Pipe(cluster, partial(self._stuck, *way)) for way in permutations(ids, 2)}
        """Stages that data passes first."""
        self._levels: dict[tuple[str, int, str], int] = {}
        """What a process has been told by another member, newest."""
        self._moved: set[Direction] = set()
        """Where pushes have arrived since the sender last asked."""

    def add(self, member: SimMember, others: Iterable[SimMember]) -> None:
        """One more machine, which is linked with all but those of its own name."""
        for other in others:
            if other.member_id != member.member_id:
                first, second = sorted((member.place, other.place))
                self._links[first, second] = SimLink(first, second)
                for way in ((first, second), (second, first)):
                    self.pipes[way] = Pipe(self._cluster, partial(self._stuck, *way))

    def _link(self, one: str, other: str) -> SimLink:
        return self._links[(one, other) if one < other else (other, one)]

    def _delay_ms(self) -> float:
        if not self._cluster.is_faulty:
            return self._random.uniform(0.02, 1.0)
        delay_ms = self._random.uniform(0.02, self._profile.delay_ms)
        return 10 * delay_ms if self._random.random() < self._profile.jitter else delay_ms

    # ---------------------------------------------------------------- connections

    def started(self, member: SimMember) -> None:
        for link in self._links_of(member.place):
            self._dial_later(link)

    def gone(self, member: SimMember, *, silently: bool) -> None:
        """Its process ended; `silently`: with its machine, so peers learn of it only when it answers
        again."""
        for link in self._links_of(member.place):
            if not link.take_down():
                continue
            other = link.second if link.first == member.place else link.first
            after_ms = self._random.uniform(0, GIVE_UP_MS if silently else 2 * self._delay_ms())
            self._lose_later(other, member.place, after_ms, closed_by_peer=not silently)

    def reset(self, one: str, other: str, *, closed_by: str | None) -> None:
        """The connection breaks; both ends are notified, each in its time."""
        link = self._link(one, other)
        if not link.take_down():
            return
        for me, peer in ((one, other), (other, one)):
            self._lose_later(me, peer, self._delay_ms(), closed_by_peer=closed_by == peer)
        self._dial_later(link)

    def _links_of(self, place: str) -> list[SimLink]:
        return [link for pair, link in self._links.items() if place in pair]

    def reset_one(self, dialler: str, acceptor: str, role: str) -> None:
        """One of the four breaks and is dialled again; the other three stay."""
        link = self._link(dialler, acceptor)
        if not link.is_up:
            return
        link.numbers[dialler, role] += 1
        for me, peer in ((dialler, acceptor), (acceptor, dialler)):
            end = self._end(me, peer)
            way = Way(role, is_ours=me == dialler)
            hear = partial(self._hear_of_end, end, way, end.standing.get(way))
            self._cluster.at(self._greeting_ms(), hear)
        self._greet_later(link, dialler, role, self._chance.uniform(1, 30))

    @staticmethod
    def _hear_of_end(end: End, way: Way, standing: OpenConnection | None) -> None:
        if standing is not None and end.standing.get(way) == standing:
            end.broke(way)

    def _end(self, me: str, peer: str) -> End:
        return self._cluster.member(me).ends[peer]

    def _lose_later(self, me: str, peer: str, after_ms: float, *, closed_by_peer: bool) -> None:
        end = self._end(me, peer)
        before = {standing.epoch for standing in end.standing.values()}

        def lose() -> None:
            # Of a process that has ended nothing stands.
            if before == {standing.epoch for standing in end.standing.values()}:
                for way in WAYS:
                    end.broke(way)
                if closed_by_peer:
                    end.connections.gone()

        if before:
            self._cluster.at(after_ms, lose)

    def _dial_later(self, link: SimLink) -> None:
        epoch = link.epoch
        self._cluster.at(self._random.uniform(1, 30), lambda: self._dial(link, epoch))

    def _dial(self, link: SimLink, epoch: int) -> None:
        one, other = self._cluster.member(link.first), self._cluster.member(link.second)
        if link.is_up or link.epoch != epoch or not (one.is_up and other.is_up):
            return
        ends = self._end(link.first, link.second), self._end(link.second, link.first)
        unaware = any(end.standing for end in ends)
        blocked = self._is_blocked(link)
        refusal = "" if blocked else self._refusal_between(one, other)
        if blocked or one.is_paused or other.is_paused or unaware or refusal:
            # An end that still believes in the old connection learns of its end by this dial.
            if unaware and not blocked:
                self._lose_later(link.first, link.second, 0, closed_by_peer=True)
                self._lose_later(link.second, link.first, 0, closed_by_peer=True)
            self._cluster.at(self._random.uniform(20, 200), lambda: self._dial(link, epoch))
            return
        link.is_up = True
        link.broken = False
        link.epoch += 1
        for me, peer in ((one, other), (other, one)):
            self.pipes[me.place, peer.place].advance()
            for role in ROLES:
                if self._profile.connects_one_by_one:
                    self._greet_later(link, me.place, role, 0.0)
                    continue
                for is_ours in (True, False):
                    dialler = me if is_ours else peer
                    standing = link.standing(dialler.place, role, peer.replica.directory_id)
                    me.ends[peer.place].opened(Way(role, is_ours), standing)

    def _is_blocked(self, link: SimLink) -> bool:
        return bool({(link.first, link.second), (link.second, link.first)} & self.cut)

    # ---------------------------------------------------------------- one by one

    def _greeting_ms(self) -> float:
        return self._chance.uniform(0, self._chance.choice(GREETING_MS))

    def _greet_later(self, link: SimLink, dialler_id: str, role: str, after_ms: float) -> None:
        """The acceptor takes the connection for standing with the Hello, the dialler with the answer."""
        acceptor_id = link.second if dialler_id == link.first else link.first
        dialler, acceptor = self._cluster.member(dialler_id), self._cluster.member(acceptor_id)
        number = link.epoch, link.numbers[dialler_id, role]

        def is_over() -> bool:
            return not link.is_up or number != (link.epoch, link.numbers[dialler_id, role])

        def hello() -> None:
            if is_over():
                return
            if self._is_blocked(link):
                self._greet_later(link, dialler_id, role, self._chance.uniform(20, 200))
                return
            standing = link.standing(dialler_id, role, dialler.replica.directory_id)
            acceptor.ends[dialler_id].opened(Way(role, is_ours=False), standing)
            dialler.later(self._greeting_ms(), answer)

        def answer() -> None:
            if not is_over():
                standing = link.standing(dialler_id, role, acceptor.replica.directory_id)
                dialler.ends[acceptor_id].opened(Way(role, is_ours=True), standing)

        acceptor.later(after_ms + self._greeting_ms(), hello)

    def _refusal_between(self, one: SimMember, other: SimMember) -> str:
        """Empty if both welcome each other's first frame."""
        for acceptor, dialler in ((one, other), (other, one)):
            known_ids = self._cluster.member_ids
            hello, own = dialler.hello(acceptor), acceptor.hello_response()
            refusal = refusal_of(hello, own, DEFAULT_GROUP, known_ids)
            if refusal:
                self._cluster.trace.count("dial: refused")
                acceptor.note(f"refuses {dialler.member_id}", refusal)
                return refusal
            level = dialler.hello(acceptor).level
            self._levels[acceptor.place, acceptor.process, dialler.place] = level
        return ""

    def members_below(self, level: int, member: SimMember) -> list[str]:
        """See `Host.members_below`."""
        levels = {
            other: self._levels.get((member.place, member.process, other), 0)
            for other in sorted(member.ends)
            if other in self._cluster.member_ids or (member.place, member.process, other) in self._levels
        }
        levels[member.place] = member.level
        places = self._cluster.places
        return list(
            dict.fromkeys(places[other] for other, reported in levels.items() if reported < level)
        )

    # ---------------------------------------------------------------- messages

    def moving_data_of(self, sender: SimMember) -> Iterable[Replica]:
        """See `Host.replicas_with_moving_data`."""
        outward = [way for way in self.pipes if way[0] == sender.place]
        moving = [to for me, to in outward if (me, to) in self._moved or self.pipes[me, to].is_moving]
        self._moved.difference_update(outward)
        connected = [sender.ends[to].connections.connected_to for to in moving]
        return [replica for replica in connected if replica is not None]

    def _stuck(self, from_id: str, to_id: str) -> None:
        link, pipe = self._link(from_id, to_id), self.pipes[from_id, to_id]
        self._give_up_later(link, lambda: pipe.is_stuck)

    def _give_up_later(self, link: SimLink, is_stuck: Callable[[], bool]) -> None:
        epoch = link.epoch

        def give_up() -> None:
            if link.epoch == epoch and is_stuck():
                self.reset(link.first, link.second, closed_by=None)

        self._cluster.at(GIVE_UP_MS, give_up)

    def _place_of(self, sender: SimMember, to: Replica) -> str:
        """Where this one knows the directory; else the place of its name."""
        if len(self._cluster.places) == len(self._cluster.member_ids):
            return to.member_id  # each has one machine
        places = [p for p in sender.ends if self._cluster.places[p] == to.member_id]
        held = (p for p in places if sender.ends[p].connections.connected_to == to)
        return next(held, to.member_id)

    def send(self, sender: SimMember, envelope: Envelope) -> bool:
        """False if the connection has no room for it."""
        to = envelope.to
        place = self._place_of(sender, to)
        link = self._link(sender.place, place)
        role = role_of(envelope.message)
        standing = link.standing(sender.place, role, to.directory_id)
        known = sender.ends[place].standing.get(Way(role, is_ours=True))
        if not link.is_up or known != standing:
            return True
        data = b"".join(encode_frame(DEFAULT_GROUP, envelope.message))
        parcel = Parcel(sender, envelope, data, link, standing, place)
        pipe = self.pipes[parcel.way]
        if role == "control" or not pipe.is_limited:
            self._send(parcel)
        elif pipe.has_room:
            is_push = carries_push(envelope.message)
            pipe.put(len(data), parcel.is_open, partial(self._send, parcel), is_push=is_push)
        else:
            self._cluster.trace.count("link: full")
            return False
        return True

    def _send(self, parcel: Parcel) -> None:
        self._cluster.trace.bytes_sent(parcel.data)
        if parcel.way in self.cut:
            self._into_cut(parcel)
            return
        is_faulty = self._cluster.is_faulty
        if is_faulty and self._random.random() < self._profile.loss:
            return
        self._deliver_later(parcel)
        if is_faulty and self._random.random() < self._profile.repeat:
            self._deliver_later(parcel)

    def _into_cut(self, parcel: Parcel) -> None:
        if self._profile.holds_cut_messages:
            self._held.append(parcel)
        else:
            parcel.link.broken = True
        self._give_up_later(parcel.link, lambda: parcel.way in self.cut)

    def heal(self, ways: set[Direction]) -> None:
        self.cut -= ways
        for link in self._links.values():
            both = {(link.first, link.second), (link.second, link.first)}
            if link.broken and both & ways and not both & self.cut:
                link.broken = False
                self.reset(link.first, link.second, closed_by=None)
        freed = [parcel for parcel in self._held if parcel.way not in self.cut]
        self._held = [parcel for parcel in self._held if parcel.way in self.cut]
        for parcel in freed:
            self._deliver_later(parcel)

    def _deliver_later(self, parcel: Parcel) -> None:
        sender, envelope, data, link, standing, _ = parcel
        role = role_of(envelope.message)
        sender_id, to_id = parcel.way
        stream = (sender_id, to_id, role) if self._profile.connects_one_by_one else (sender_id, to_id)
        arrival_ms = self._cluster.now_ms + self._delay_ms()
        if self._profile.in_order or not self._cluster.is_faulty:
            arrival_ms = max(arrival_ms, self._last_arrival.get(stream, 0.0))
            self._last_arrival[stream] = arrival_ms
        replica = sender.replica
        expected = standing._replace(directory_id=replica.directory_id)

        def deliver() -> None:
            receiver = self._cluster.member(to_id)
            if link.standing(sender_id, role, replica.directory_id) != expected or not receiver.is_up:
                return
            end, way = receiver.ends[sender_id], Way(role, is_ours=False)
            if end.standing.get(way) != expected:
                return
            if carries_push(envelope.message):
                self._moved.add((sender_id, to_id))
            message = self._decoder.receive_data(data)[0].message
            assert isinstance(message, PeerMessage), message
            msgspec.structs.force_setattr(message, "sender", replica)

            def enter() -> None:
                receiver.enter(lambda: receiver.receive(message))

            if end.connections.connected_to:
                enter()
            else:
                self._cluster.trace.count("connections: a frame came early")
                end.connections.hold(way, len(data), enter)

        self._cluster.at(arrival_ms - self._cluster.now_ms, deliver)
