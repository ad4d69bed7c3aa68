"""One TCP connection: frames in, frames out, under asyncio's buffered protocol."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from quorumlog.batch import EntryBatch
from quorumlog.client_guard import contain
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.log_state.users import Verifier
from quorumlog.net.frame import (
    RECEIVE_BUFFER_BYTES,
    AnyFrameMessage,
    Frame,
    FrameDecoder,
    encode_frame,
)
from quorumlog.net.handshakes import Handshakes
from quorumlog.net.limits import ALL_UNSENT_BYTES, UNSENT_BYTES, ProcessLimits
from quorumlog.net.quotas import Meter, OnlyLooks
from quorumlog.stray_log import StrayLog
from quorumlog.wire.client_message import ClientMessage

log = logging.getLogger("quorumlog.server")

FrameHandler = Callable[["Connection", Frame], None]
LostHandler = Callable[["Connection", bool], None]
LastWords = Callable[[Exception], bytes | None]
"""The message to a client of another protocol before its connection is closed for this."""

TURN_FRAMES = 2048
"""A turn of the loop that took so many is full."""
OVERFULL_FRAMES = 2 * TURN_FRAMES
TURN_S = 0.005
"""Seconds of a turn of the loop for one client's requests, or for all clients with more requests
together."""
LEAST_SHARE_BYTES = 64
"""Of each connection in a turn, and then the rest of the frame that has begun."""
SMALL_BYTES = 4 * 1024
"""As little may wait for a client uncounted: most answers are a fraction of it."""
SILENT_PEER_MS = 5000
"""A connection whose bytes stay unacknowledged for so long is given up and dialled again: TCP's own
back-off would stay silent for up to two minutes."""


LINGER_S = 2.0
LINGER_BYTES = 64 << 20
"""Taken in and thrown away after an answer that ends a connection: see `close_once_read`."""

_TCP_INFO = struct.Struct("@68xI48xQQ")
"""Of the kernel's struct tcp_info: tcpi_rtt, tcpi_bytes_acked, tcpi_bytes_received."""


def call_soon(
    loop: asyncio.AbstractEventLoop, thread: int, act: Callable[..., object], *arguments: object
) -> None:
    """From any thread; `thread`: that of the loop, which need not be woken."""
    if threading.get_ident() == thread:
        loop.call_soon(act, *arguments)
    else:
        loop.call_soon_threadsafe(act, *arguments)


class Traffic(NamedTuple):
    sent_bytes: int
    received_bytes: int
    round_trip_us: int


class LoopTurn:
    """One turn of the loop, for the connections of all ports: how much they read, and one write for each
    at its end.

    Hundreds of clients that send without waiting for answers fill the kernel's buffers with more than a
    second's work, and a loop that took all of it at one look would miss its heartbeats. So once a turn
    is full, each connection is read once a turn, and of each the same share, which grows until the
    turns are just about full. The rest stays in the kernel.

    Handling a request may take far longer than reading its frame. So a client whose frames take too long
    queues with the remaining ones, and continues in the next turn.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds; it advances within a turn, as some loops' own does not."""
        self.loop = loop
        self.clock = clock
        self.share_s = TURN_S
        """Of each client in a turn, and then the frame that has begun."""
        self._line: list[Connection] = []
        """Clients with frames that are left for the next turn."""
        self.sending: list[Connection] = []
        self.frames = 0
        self.is_begun = False
        """Code that sets this calls `flush` before it returns to the loop."""
        self._paused: list[Connection] = []
        self._late: list[Connection] = []
        """Those of them that found the turn overfull: the next begins with them."""
        self.share_bytes = RECEIVE_BUFFER_BYTES
        """Of each connection; all of its buffer while no turn is full."""
        self.strays = StrayLog(log)
        self.handshakes = Handshakes()
        self._unsent: dict[Connection, int] = {}
        """Bytes held for clients that have not read them, of each when it was sent something last."""
        self._unsent_bytes = 0

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopTurn:
        """The one that all ports of a loop share."""
        turn = _TURNS.get(loop)
        if turn is None:
            for closed in [each for each in _TURNS if each.is_closed()]:
                del _TURNS[closed]
            turn = _TURNS[loop] = cls(loop)
        return turn

    @property
    def is_overfull(self) -> bool:
        """The share is still that of fewer senders: until it adapts, later connections wait."""
        return self.frames >= OVERFULL_FRAMES

    def took(self, frames: int, connection: Connection) -> None:
        """The last of its `frames`; the turn is full, or was."""
        if self.share_bytes == RECEIVE_BUFFER_BYTES:
            self.share_bytes //= 2
        paused = self._late if self.frames - frames >= OVERFULL_FRAMES else self._paused
        # The loop would ask this socket again and again, as long as it fills its buffer.
        if not self._paused and not self._late:
            self.loop.call_soon(self.flush)
        paused.append(connection)
        connection.pause_reading()

    def enqueue(self, connection: Connection) -> None:
        if not self._line:
            self.loop.call_soon(self._take_line)
        self._line.append(connection)

    def _take_line(self) -> None:
        line, self._line = self._line, []
        self.share_s = TURN_S / len(line)
        for connection in line:
            connection.take_held()
        if not self._line:
            self.share_s = TURN_S

    def look_at_unsent(self, connection: Connection) -> None:
        """Of a client, which was sent something."""
        unsent = connection.held_bytes
        self._unsent_bytes += unsent - self._unsent.pop(connection, 0)
        if unsent:
            self._unsent[connection] = unsent
        if self._unsent_bytes <= ALL_UNSENT_BYTES:
            return
        # Many will have read since they were looked at.
        self._unsent = {each: unsent for each in self._unsent if (unsent := each.held_bytes)}
        self._unsent_bytes = sum(self._unsent.values())
        while self._unsent_bytes > ALL_UNSENT_BYTES:
            most = max(self._unsent, key=lambda each: self._unsent[each])
            self.strays.closing(
                most.peer_name,
                f"it does not read its answers: {self._unsent[most]} bytes are held for it, and"
                f" {self._unsent_bytes} for all",
            )
            most.abort()

    def forget(self, connection: Connection) -> None:
        """Nothing of it waits any more."""
        self._unsent_bytes -= self._unsent.pop(connection, 0)

    def flush(self) -> None:
        self.is_begun = False
        sending, self.sending = self.sending, []
        for connection in sending:
            connection.flush()
        if self._paused or self._late:
            self._share_again()
        self.frames = 0

    def _share_again(self) -> None:
        if self.frames < TURN_FRAMES:
            self.share_bytes = min(2 * self.share_bytes, RECEIVE_BUFFER_BYTES)
        else:
            self.share_bytes = max(self.share_bytes // 2, LEAST_SHARE_BYTES)
        paused = self._late + self._paused
        self._late, self._paused = [], []
        for connection in paused:
            connection.resume_reading()


_TURNS: dict[asyncio.AbstractEventLoop, LoopTurn] = {}


class Decoder(Protocol):
    """Bytes in, frames out: as `FrameDecoder`, for a port with frames of another kind."""

    @property
    def missing_bytes(self) -> int: ...
    @property
    def unfinished_bytes(self) -> int:
        """Held of a message that has not come whole."""
        ...

    def get_buffer(self, sizehint: int = -1) -> memoryview: ...
    def buffer_updated(self, count: int) -> list[Frame]: ...


_GONE = FrameDecoder()
"""Of connections that are lost: it is fed nothing."""


class Session(Protocol):
    """The owner of a connection after the Hello."""

    def frame(self, frame: Frame) -> None: ...
    def lost(self) -> None: ...

    def writable(self) -> None:
        """Bytes were sent, or a slow reader has caught up."""


class Connection(asyncio.BufferedProtocol):
    """Hands every frame to `on_frame(connection, frame)` until it has a session, then to that; and its
    end to both `on_lost(connection, closed_by_peer)` and the session."""

    def __init__(
        self,
        loop_turn: LoopTurn,
        on_frame: FrameHandler,
        on_lost: LostHandler,
        connection_id: str = "",
        decoder: Decoder | None = None,
        on_made: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """`decoder`: of a port with messages of its own."""
        self._loop_turn = loop_turn
        self.on_frame = on_frame
        self.session: Session | None = None
        self.on_lost = on_lost
        self.connection_id = connection_id
        self._on_made = on_made
        self.last_words: LastWords | None = None
        self.at_end: Callable[[], list[Frame]] | None = None
        """Called when the other side sends no more, though it may read; returns frames to take. None: no
        answer."""
        self._is_at_end = False
        self.decoder = FrameDecoder() if decoder is None else decoder
        self._transport: asyncio.Transport | None = None
        self._tcp: asyncio.Transport | None = None
        """Below TLS; None: the connection is plain."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flushed_bytes = 0
        """When it was sent something last."""
        self._written_bytes = 0
        self._is_clogged = False
        """The other side does not read what it is sent."""
        self.is_held = False
        """Its session has frames that wait: no more are read until it says so."""
        self.is_always_heard = False
        """Reads also while the other side does not read its answers."""
        self.user = ""
        """The authenticated user of the other side; empty: none."""
        self.password: Verifier | None = None
        """By which password; None: otherwise."""
        self.is_client = False
        """It may be closed where clients take too much."""
        self.limits: ProcessLimits | None = None
        self.is_counted = False
        """Among those of its user and its address."""
        self.meter: Meter | OnlyLooks | None = None
        """Of a client whose user or address may take so much and no more."""
        self._has_unfinished = False
        """The limits know of it."""
        self.is_in_pieces = False
        """Its frames are pieces of messages: its session calls `note_unfinished` when one is whole."""
        self.beside_bytes = 0
        """Bytes to be sent that its session holds outside this connection."""
        self._held: list[Frame] = []
        """They came, and are taken once there is room for their answers, and time."""
        self._requests_bytes = 0
        """Of requests that came whole, and that its session has not begun."""
        self._is_in_line = False
        self._waiting: list[Callable[[], None]] = []
        self.closed = False
        self._closed_by_us = False
        self._thrown: memoryview | None = None
        """What comes in meanwhile goes there; None: it is not waited for the other side to read."""
        self._thrown_bytes = 0
        self._lingers: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_PEER_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_PEER_MS // 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self._on_made(self)

    def below(self, tcp: asyncio.Transport) -> None:
        """It is made, and the transport it was made with encrypts to this one."""
        self._tcp = tcp

    @property
    def is_made(self) -> bool:
        """And not lost."""
        return self._transport is not None

    @property
    def is_encrypted(self) -> bool:
        return self._tcp is not None

    @property
    def certificate(self) -> dict[str, Any]:
        """Of the other side; empty: it has shown none."""
        if self._transport is None or self._tcp is None:
            return {}
        return self._transport.get_extra_info("ssl_object").getpeercert() or {}

    def received(self, data: bytes) -> None:
        """Bytes that arrived before the transport handed them over by itself."""
        while data and not self.closed:
            buffer = self.get_buffer(-1)
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            self.buffer_updated(taken)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._thrown is not None:
            return self._thrown
        buffer = self.decoder.get_buffer()
        turn = self._loop_turn
        if turn.share_bytes == RECEIVE_BUFFER_BYTES:
            return buffer
        # A frame that has begun may end: it would take dozens of turns otherwise.
        share_bytes = 0 if turn.is_overfull else turn.share_bytes
        return buffer[: max(share_bytes, self.decoder.missing_bytes)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._thrown is not None:
            self._thrown_bytes += nbytes
            if self._thrown_bytes > LINGER_BYTES:
                self.abort()
            return
        try:
            frames = self.decoder.buffer_updated(nbytes)
            came = len(frames)  # to refuse one takes its time, too
            if self.meter is not None:
                frames = self.meter.admitted(frames, self)
            session = self.session
            is_free = not (self._held or self._is_clogged or self._out_bytes or self.closed)
            if is_free and len(frames) == 1 and session is not None:
                session.frame(frames[0])
            else:
                self._take(frames)
        except Exception as error:
            contain(error, self)
            return
        if not self.closed:
            turn = self._loop_turn
            turn.frames += came
            if turn.frames >= TURN_FRAMES or turn.share_bytes < RECEIVE_BUFFER_BYTES:
                turn.took(came, self)
            if self._held or self._has_unfinished or self.decoder.unfinished_bytes > SMALL_BYTES:
                self.note_unfinished(is_new=bool(came) and not self.is_in_pieces)

    def eof_received(self) -> bool:
        """True: the connection stays."""
        if self.at_end is None or self.closed:
            return False
        if not self._is_at_end:
            self._is_at_end = True
            try:
                self._take(self.at_end())
            except Exception as error:
                contain(error, self)
        return not self.closed

    def note_unfinished(self, *, is_new: bool) -> None:
        """Tell the limits what is held of messages that have come in part. `is_new`: what began first
        has come whole."""
        limits = self.limits
        if limits is None:
            return
        size_bytes = self.decoder.unfinished_bytes + self._requests_bytes
        for frame in self._held:
            if frame.batch is not None:
                size_bytes += len(frame.batch.buffer)
        if self._has_unfinished and (is_new or size_bytes <= SMALL_BYTES):
            self._has_unfinished = False
            limits.unfinished(self, 0, is_client=self.is_client, now_s=0.0)
        if size_bytes > SMALL_BYTES:
            self._has_unfinished = True
            now_s = self._loop_turn.clock()
            limits.unfinished(self, size_bytes, is_client=self.is_client, now_s=now_s)

    def hold_requests(self, size_bytes: int) -> None:
        """So much of requests waits in its session; over all clients it is bounded as what has come in
        part is."""
        if size_bytes != self._requests_bytes and not self.closed:
            is_new = size_bytes < self._requests_bytes
            self._requests_bytes = size_bytes
            self.note_unfinished(is_new=is_new)

    def greets_again(self) -> None:
        """The next frame is still of the greeting."""
        if isinstance(self.decoder, FrameDecoder):
            self.decoder.greets_again()

    def _take(self, frames: list[Frame]) -> None:
        if self._held:
            self._held += frames  # of what had been received when reading was paused
            return
        turn = self._loop_turn
        is_shared = self.is_client and len(frames) > 1
        until_s = 0.0
        for number, frame in enumerate(frames):
            if self.closed:
                return
            if self.is_deaf:
                self._held = frames[number:]
                self.pause_reading()
                return
            if is_shared:
                now_s = turn.clock()
                if until_s == 0.0:
                    until_s = now_s + turn.share_s
                elif now_s >= until_s:
                    self._held = frames[number:]
                    self._is_in_line = True
                    self.pause_reading()
                    turn.enqueue(self)
                    return
            if self.session is not None:
                self.session.frame(frame)
                continue
            meter = self.meter
            self.on_frame(self, frame)
            if self.meter is not None and meter is None:  # this was its greeting
                self._take(self.meter.admitted(frames[number + 1 :], self))
                return

    def take_held(self) -> None:
        """Its turn has come."""
        self._is_in_line = False
        self._go_on(is_room=False)

    @property
    def is_deaf(self) -> bool:
        """Received bytes wait until there is room for their answers."""
        return self.closed or (
            (self._is_clogged or self._out_bytes >= UNSENT_BYTES) and not self.is_always_heard
        )

    @property
    def is_full(self) -> bool:
        """Megabytes wait to be sent: further requests must wait, too."""
        return self._is_clogged or self._out_bytes >= UNSENT_BYTES

    def when_room(self, act: Callable[[], None]) -> None:
        """Call `act` once it is not full any more, in the order of these calls; never if it is lost."""
        if self.is_full:
            self._waiting.append(act)
        else:
            act()

    def _go_on(self, is_room: bool = True) -> None:
        """There is room again, or time."""
        try:
            if is_room:
                waiting, self._waiting = self._waiting, []
                for act in waiting:
                    act()
            if not self._is_in_line:
                held, self._held = self._held, []
                self._take(held)
                self.note_unfinished(is_new=bool(held) and not self.is_in_pieces)
        except Exception as error:
            contain(error, self)
            return
        self.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = self._tcp = None
        if self._lingers is not None:
            self._lingers.cancel()
        self._forget()
        by_peer = not self._closed_by_us and (
            exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError)
        )
        self.on_lost(self, by_peer)
        if self.session is not None:
            self.session.lost()
            self.session = None
        # The two hold each other until cycles are looked for, and a decoder may hold megabytes.
        self.decoder = _GONE

    def pause_writing(self) -> None:
        self._is_clogged = True
        if not self.is_always_heard:
            self.pause_reading()

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._go_on()
        if not self.closed and self.session is not None:
            self.session.writable()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if (self._is_clogged and not self.is_always_heard) or self._held or self.is_held:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---------------------------------------------------------------- sending and closing

    def send(
        self, group: str, message: AnyFrameMessage | ClientMessage, batch: EntryBatch | None = None
    ) -> None:
        if self.closed:
            return
        try:
            buffers = encode_frame(group, message, batch)
            self.write(buffers)
            if self.meter is not None and isinstance(message, ClientMessage):
                self.meter.answered(message, sum(map(len, buffers)))
        except Exception as error:
            contain(error, self)

    def write(self, buffers: list[Buffer]) -> None:
        """Send bytes of a port with frames of its own."""
        if self.closed:
            return
        if not self._out:
            turn = self._loop_turn
            if not turn.sending and not turn.is_begun:
                turn.loop.call_soon(turn.flush)
            turn.sending.append(self)
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)

    def flush(self) -> None:
        if self._transport is not None and self._out:
            out, self._out = self._out, []
            self._written_bytes += self._out_bytes
            self._flushed_bytes, self._out_bytes = self._out_bytes, 0
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
            if self.is_client and (
                self._flushed_bytes > SMALL_BYTES or self._buffered_bytes > SMALL_BYTES
            ):
                self._loop_turn.look_at_unsent(self)
            if self._is_clogged or self.closed:
                return
            if (self._held and not self._is_in_line) or self._waiting:
                self._go_on()
            # The kernel may take an answer of megabytes at once: then nothing is ever paused or resumed.
            if self.session is not None:
                self.session.writable()

    @property
    def _buffered_bytes(self) -> int:
        """Written, and not taken by the kernel yet."""
        if self._transport is None:
            return 0
        buffered = self._transport.get_write_buffer_size()
        # Encrypted bytes are the transport's own until it gives them to the one below.
        return buffered if self._tcp is None else buffered + self._tcp.get_write_buffer_size()

    @property
    def unsent_bytes(self) -> int:
        if self._transport is None:
            return 0
        buffered = self._transport.get_write_buffer_size() if self._tcp is None else self._buffered_bytes
        return buffered + self._out_bytes

    @property
    def held_bytes(self) -> int:
        """Of memory, about: a buffer of which one byte is unsent is held as a whole."""
        unsent = self.unsent_bytes
        return self.beside_bytes + (unsent + self._flushed_bytes if unsent else 0)

    @property
    def sent_bytes(self) -> int:
        """All that was ever given to send."""
        return self._written_bytes + self._out_bytes

    @property
    def acknowledged_bytes(self) -> int:
        """Of `sent_bytes`, those acknowledged by the other end's machine, not its process. With TLS at
        least so many: bytes in flight include the overhead of encryption."""
        if self._transport is None or self._transport.is_closing():
            return 0
        sock = self._transport.get_extra_info("socket")
        queued = int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return max(0, self._written_bytes - queued - self._buffered_bytes)

    @property
    def traffic(self) -> Traffic:
        """As the kernel counts it."""
        if self._transport is None or self._transport.is_closing():
            return Traffic(0, 0, 0)
        sock = self._transport.get_extra_info("socket")
        found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        if len(found) < _TCP_INFO.size:  # an old kernel
            return Traffic(0, 0, 0)
        round_trip_us, acknowledged_bytes, received_bytes = _TCP_INFO.unpack(found)
        return Traffic(acknowledged_bytes, received_bytes, round_trip_us)

    def violate(self, violation: ProtocolViolation) -> None:
        """The peer violated the protocol: close, and inform nothing else."""
        words = None if self.last_words is None else self.last_words(violation)
        self._loop_turn.strays.closing(self.peer_name, violation)
        if words is None:
            self.close()
        else:
            self.write([words])
            self.close_once_read()

    @property
    def peer_name(self) -> str:
        if self._transport is None:
            return "?"
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)

    @property
    def peer_host(self) -> str:
        return self.peer_name.rpartition(":")[0] or "?"

    def close(self) -> None:
        """Send queued bytes, then close; nothing more is read."""
        if self._transport is not None and not self.closed:
            self.flush()
            self.closed = True
            self._closed_by_us = True
            self._transport.close()

    def close_once_read(self) -> None:
        """Close so that the last answer arrives although the other side still sends: bytes arriving
        after a close cause a reset, at which its machine discards unread bytes."""
        transport = self._transport
        if transport is None or self.closed:
            return
        if not transport.can_write_eof():  # TLS reads until the other side has closed, by itself
            self.close()
            return
        self.flush()
        self.closed = self._closed_by_us = True
        self._thrown = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        transport.write_eof()
        transport.resume_reading()
        self._lingers = self._loop_turn.loop.call_later(LINGER_S, transport.abort)

    def abort(self) -> None:
        """Close at once; nothing queued is sent."""
        if self._transport is not None:
            self.closed = True
            self._closed_by_us = True
            self._forget()
            self._transport.abort()

    def give_up(self, reason: str) -> None:
        """Abort, and say why, if there is a reason."""
        if reason and not self.closed:
            self._loop_turn.strays.closing(self.peer_name, reason)
        self.abort()

    def hold_beside(self, size_bytes: int) -> None:
        """See `beside_bytes`; bounded over all clients, as unread answers are."""
        if not self.closed:
            self.beside_bytes = size_bytes
            self._loop_turn.look_at_unsent(self)

    def _forget(self) -> None:
        self.beside_bytes = 0
        self._out.clear()
        self._out_bytes = 0
        self._held.clear()
        self._waiting.clear()
        self._loop_turn.forget(self)
