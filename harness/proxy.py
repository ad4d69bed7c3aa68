"""Network: a TCP proxy between members, one listening port for every ordered pair of them, and one for
each member.

A member dials each other one at the port of the pair (itself, the other); or, where the log says where
members are, at the port of the other, and the first frame says who has dialled. What flows from one to
the other, on connections that either of them dialled, meets the link conditions of that direction:

    cut      nothing is delivered, and nobody is told: bytes and ends of connections are held back, and a
             connection dialled while either direction is cut is greeted by nobody until both are whole
    delayed  everything arrives later, in order
    lossy    a piece now and then waits as long as a retransmission would take, and all behind it too
    thin     so many bytes a second pass on each connection, and wait in front of it

Faults overlap: each one adds its conditions and takes away those alone.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar, cast

import uvloop

from quorumlog.config import parse_address
from quorumlog.errors import ProtocolViolation
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import Hello

HELD_LIMIT_BYTES = 4 << 20
"""For one direction of one connection; above it the sender is no longer read."""
THIN_PIECE_BYTES = 16 << 10
"""What passes a thin direction at a time."""
RETRANSMISSION_S = 0.2
"""The shortest time after which Linux sends a lost segment again."""
CALL_TIMEOUT_S = 10.0

Direction = tuple[str, str]
"""(from, to), member ids."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LinkConditions:
    is_cut: bool = False
    delay_ms: float = 0.0
    loss: float = 0.0
    """Of the pieces read at a time, the share that is lost once."""
    bytes_per_second: float = math.inf

    def __add__(self, other: LinkConditions) -> LinkConditions:
        return LinkConditions(
            self.is_cut or other.is_cut,
            self.delay_ms + other.delay_ms,
            max(self.loss, other.loss),
            min(self.bytes_per_second, other.bytes_per_second),
        )


ANYBODY, CLIENT = "anybody", ""
"""In the place of a member's id: who has not said yet who it is, and who is no member."""
UNHINDERED = LinkConditions()
CUT = LinkConditions(is_cut=True)


def both_ways(pairs: Iterable[tuple[str, str]]) -> list[Direction]:
    return [direction for a, b in pairs for direction in ((a, b), (b, a))]


class Network:
    """`with Network(addresses) as network:` runs the proxy in a thread of its own.

    `addresses`: where each member really listens, by id. Methods may be called from any thread and
    have taken effect when they return.
    """

    def __init__(self, addresses: Mapping[str, str], *, seed: int = 0) -> None:
        self._addresses = dict(addresses)
        self.random = random.Random(seed)
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._servers: dict[Direction, asyncio.Server] = {}
        self._imposed: dict[int, tuple[frozenset[Direction], LinkConditions]] = {}
        self._next_number = 1
        self.connections: set[_Connection] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(CALL_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        self._call(self._close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self.loop.close()

    # ---------------------------------------------------------------- what faults ask for

    @property
    def member_ids(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def target(self, to_id: str) -> str:
        """Where it really listens."""
        return self._addresses[to_id]

    def address(self, from_id: str, to_id: str) -> str:
        """Where `from_id` dials `to_id`."""
        return _address_of(self._servers[from_id, to_id])

    def common_address(self, to_id: str) -> str:
        """Where everybody dials `to_id`: who it is says its first frame. A log that tells members where
        the others are can tell them only this one; clients are let through unhindered."""
        return _address_of(self._servers[ANYBODY, to_id])

    def impose(self, directions: Iterable[Direction], conditions: LinkConditions) -> int:
        """Add conditions to these directions; returns the number by which `lift` takes them away."""

        def add() -> int:
            number = self._next_number
            self._next_number += 1
            self._imposed[number] = (frozenset(directions), conditions)
            return number

        return self._call(add)

    def lift(self, number: int) -> None:
        """What was held back flows again, unless other conditions hold it."""

        def remove() -> None:
            del self._imposed[number]
            for connection in list(self.connections):
                connection.look()

        self._call(remove)

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Reset every connection between the members of each pair, whoever dialled it."""
        wanted = set(both_ways(pairs))

        def abort() -> None:
            for connection in list(self.connections):
                if connection.direction in wanted:
                    connection.abort()

        self._call(abort)

    # ---------------------------------------------------------------- inside the thread

    def conditions(self, direction: Direction) -> LinkConditions:
        total = UNHINDERED
        for directions, imposed in self._imposed.values():
            if direction in directions:
                total += imposed
        return total

    async def _listen(self) -> None:
        for from_id in (ANYBODY, *self._addresses):
            for to_id in self._addresses:
                if from_id != to_id:
                    direction = (from_id, to_id)
                    accept = functools.partial(self._accept, direction)
                    server = await self.loop.create_server(accept, "127.0.0.1", 0)
                    self._servers[direction] = cast(asyncio.Server, server)

    def _accept(self, direction: Direction) -> _End:
        connection = _Connection(self, direction, parse_address(self._addresses[direction[1]]))
        self.connections.add(connection)
        return connection.dialler

    def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        for connection in list(self.connections):
            connection.abort()

    def _call(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self.loop).result(CALL_TIMEOUT_S)


def _address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"


class _Connection:
    """One accepted connection, the one dialled for it, and a pipe each way between them."""

    def __init__(self, network: Network, direction: Direction, target: tuple[str, int]) -> None:
        self._network = network
        self.direction = direction
        self._target = target
        self._dialling: asyncio.Task[None] | None = None
        self._greeting = FrameDecoder() if direction[0] == ANYBODY else None
        """Until it is known who has dialled."""
        self._greeted: list[bytes] = []
        self.dialler, self.listener = _End(self), _End(self)
        there, back = direction, direction[::-1]
        self.dialler.pipe = _Pipe(network, there, self.dialler, self.listener)
        self.listener.pipe = _Pipe(network, back, self.listener, self.dialler)

    def look(self) -> None:
        """The conditions have changed, or an end has been connected."""
        is_known = self._greeting is None and self.dialler.transport is not None
        if self._dialling is None and is_known:
            there = self._network.conditions(self.direction)
            back = self._network.conditions(self.direction[::-1])
            if not there.is_cut and not back.is_cut:
                self._dialling = self._network.loop.create_task(self._dial())
        for end in (self.dialler, self.listener):
            end.pipe.pump()

    def take(self, end: _End, data: bytes) -> None:
        """`end` has received it."""
        if self._greeting is None:
            end.pipe.feed(data)
            return
        self._greeted.append(data)
        try:
            frames = self._greeting.receive_data(data)
        except ProtocolViolation:
            self._name(CLIENT)
            return
        for frame in frames[:1]:
            self._name(frame.message.member_id if isinstance(frame.message, Hello) else CLIENT)

    def _name(self, from_id: str) -> None:
        self._greeting, self.direction = None, (from_id or CLIENT, self.direction[1])
        self.dialler.pipe.direction, self.listener.pipe.direction = self.direction, self.direction[::-1]
        for data in self._greeted:
            self.dialler.pipe.feed(data)
        self._greeted.clear()
        self.look()

    async def _dial(self) -> None:
        try:
            await self._network.loop.create_connection(lambda: self.listener, *self._target)
        except OSError:
            self.abort()

    def end_lost(self) -> None:
        """Forget the connection once neither end is open."""
        if self.dialler.is_lost and (self.listener.is_lost or self._dialling is None):
            self._network.connections.discard(self)

    def abort(self) -> None:
        self._network.connections.discard(self)
        if self._dialling is not None:
            self._dialling.cancel()
        for end in (self.dialler, self.listener):
            end.pipe.drop()
            if end.transport is not None and not end.is_lost:
                # A close without lingering is a reset on the wire.
                sock = end.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.transport.abort()


class _End(asyncio.Protocol):
    """One socket; what it receives goes into its pipe."""

    pipe: _Pipe

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.transport: asyncio.Transport | None = None
        self.is_lost = False
        self.is_full = False
        """Its kernel takes no more at the moment."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connection.look()

    def data_received(self, data: bytes) -> None:
        self._connection.take(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.pipe.feed(None)
        self._connection.end_lost()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._connection.look()


class _Pipe:
    """One direction of one connection: pieces wait until they are due and the direction is not cut."""

    def __init__(self, network: Network, direction: Direction, source: _End, target: _End) -> None:
        self._network = network
        self.direction = direction
        self._source = source
        self._target = target
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        """(due, bytes), None for the end of the connection."""
        self._held_bytes = 0
        self._is_paused = False
        self._last_due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, data: bytes | None) -> None:
        conditions = self._network.conditions(self.direction)
        due_s = self._network.loop.time() + conditions.delay_ms / 1000
        if conditions.loss and self._network.random.random() < conditions.loss:
            due_s += RETRANSMISSION_S
        self._last_due_s = max(self._last_due_s, due_s)
        if data is None or conditions.bytes_per_second == math.inf:
            self._pieces.append((self._last_due_s, data))
        else:
            for first in range(0, len(data), THIN_PIECE_BYTES):
                piece = data[first : first + THIN_PIECE_BYTES]
                self._last_due_s += len(piece) / conditions.bytes_per_second
                self._pieces.append((self._last_due_s, piece))
        self._held_bytes += len(data or b"")
        self.pump()
        source = self._source
        if self._held_bytes > HELD_LIMIT_BYTES and source.transport is not None and not self._is_paused:
            self._is_paused = True
            source.transport.pause_reading()

    def pump(self) -> None:
        target = self._target.transport
        now_s = self._network.loop.time()
        is_cut = self._network.conditions(self.direction).is_cut
        while self._pieces and target is not None and not is_cut and not self._target.is_full:
            due_s, data = self._pieces[0]
            if due_s > now_s:
                self._wake_at(due_s)
                break
            self._pieces.popleft()
            self._held_bytes -= len(data or b"")
            if data is None:
                target.close()
            elif not self._target.is_lost:
                target.write(data)
        if self._is_paused and self._held_bytes <= HELD_LIMIT_BYTES:
            self._is_paused = False
            if self._source.transport is not None and not self._source.is_lost:
                self._source.transport.resume_reading()

    def drop(self) -> None:
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, due_s: float) -> None:
        if self._timer is None:
            self._timer = self._network.loop.call_at(due_s, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.pump()
