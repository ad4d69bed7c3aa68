"""One thread and plain sockets under a `ClientProtocol`, shared by all callers of a blocking client.

Callers write; the thread reads, keeps time and dials. A caller that finds another one writing to the
same connection leaves its bytes there, and the one who writes takes them along.

`_lock` guards the protocol and the outboxes. It is never held during a system call that could block.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.client.events import Events
from quorumlog.client.protocol.append_joiner import JoinedAppends
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.rpc.calls import CLOSED, Link, LinkState
from quorumlog.net.rpc.protocol import Work
from quorumlog.net.rpc.view import GroupEvent
from quorumlog.net.system import now_ms, system_reason_of

_MAX_BUFFERS_PER_WRITE = 512
_READS_PER_WAKE_UP = 16
_DOZE_MS = 50.0
"""While there is traffic the thread looks up this often, so that a caller need not wake it to have its
deadline watched."""
_DOZE_FOR_MS = 1000.0


@dataclass(slots=True, eq=False)
class _Connection:
    link: Link
    socket: socket.socket
    is_sending: bool = False
    """A thread is inside a write: no other writes or closes the socket."""
    is_closed: bool = False
    unsent: list[Buffer] = field(default_factory=list)
    """What the kernel did not take; the thread writes it when the socket is writable."""


class _Dialled(NamedTuple):
    link: Link
    socket: socket.socket | None
    error: str


class IoThread:
    """Started by the first submission, ended by `close`."""

    def __init__(self, protocol: ClientProtocol, events: Events) -> None:
        self._protocol = protocol
        self._events = events
        self._callbacks: queue.SimpleQueue[Callable[[], None] | None] | None = None
        """Of the thread that calls back; None at its end."""
        self._to_tell: deque[GroupEvent] = deque()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._dialled: deque[_Dialled] = deque()
        self._to_close: deque[_Connection] = deque()
        self._to_write_on: deque[_Connection] = deque()
        """Connections whose socket became full: the thread waits until they are writable."""
        self._sleeps_until_ms = 0.0
        self._last_traffic_ms = 0.0
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._is_released = False
        self._crash: BaseException | None = None

    # ---------------------------------------------------------------- callers

    def submit(self, requests: Iterable[Request]) -> None:
        with self._lock:
            if self._crash is not None:
                raise RuntimeError("the client's thread has ended with an error") from self._crash
            if self._thread is None and not self._is_stopping:
                self._thread = threading.Thread(target=self._run, name="quorumlog-client", daemon=True)
                self._thread.start()
            now = now_ms()
            self._last_traffic_ms = now
            for request in requests:
                if request.context is None:
                    request.context = threading.Lock()
                    request.context.acquire()  # released when the request is done
                self._protocol.submit(request, now)
            connections = self._carry_out(self._protocol.take_work())
            if self._sleeps_until_ms - now > 2 * _DOZE_MS:
                self._wake()
        for connection in connections:
            self._write(connection)

    def cancel(self, requests: Iterable[Request]) -> None:
        """Nobody waits for these any more."""
        with self._lock:
            for request in requests:
                self._protocol.cancel(request, now_ms())
            self._carry_out(self._protocol.take_work())

    @staticmethod
    def wait(request: Request) -> None:
        """Until it is done; the protocol sees to its deadline."""
        if not request.is_done:
            request.context.acquire()

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._protocol.close(now_ms())
                self._carry_out(self._protocol.take_work())
                self._wake()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        elif thread is None:
            self._release()

    # ---------------------------------------------------------------- with the lock held

    def _carry_out(self, work: Work) -> list[_Connection]:
        """Returns the connections to write to once the lock is released."""
        for request in work.completed:
            waiter = request.context
            # None: a probe of the protocol's own.
            if isinstance(waiter, JoinedAppends):
                for each, outcome in zip(waiter.waiters, waiter.outcomes(), strict=True):
                    each.give(outcome)
            elif waiter is not None:
                waiter.release()
        for link in work.close:
            if link.context is not None:
                self._to_close.append(link.context)
                self._wake()
        for link in work.dial:
            threading.Thread(target=self._dial, args=(link,), name="quorumlog-dial", daemon=True).start()
        if work.events:
            self._to_tell += work.events
            self._wake()
        return [link.context for link in work.write if link.context is not None]

    def _wake(self) -> None:
        # An error means that it wakes anyway (full) or has ended (closed).
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    # ---------------------------------------------------------------- without the lock

    def _dial(self, link: Link) -> None:
        """In a thread of its own, since looking a name up may take any time."""
        sock: socket.socket | None = None
        error = ""
        try:
            timeout_s = self._protocol.timings.connect_timeout_ms / 1000.0
            sock = socket.create_connection(parse_address(link.address), timeout=timeout_s)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as failure:
            error = system_reason_of(failure)
        with self._lock:
            if self._is_released:
                if sock is not None:
                    sock.close()
                return
            self._dialled.append(_Dialled(link, sock, error))
        self._wake()

    def _write(self, connection: _Connection) -> None:
        """The outbox, and what is put there meanwhile."""
        while True:
            with self._lock:
                link = connection.link
                if connection.is_sending or connection.unsent or connection.is_closed or not link.outbox:
                    return
                buffers, link.outbox = link.outbox, []
                connection.is_sending = True
            self._send(connection, buffers)

    def _send(self, connection: _Connection, buffers: list[Buffer]) -> None:
        """On a connection that is marked as sending."""
        reason = ""
        try:
            while buffers:
                sent = connection.socket.sendmsg(buffers[:_MAX_BUFFERS_PER_WRITE])
                buffers = _after(buffers, sent)
        except BlockingIOError:
            pass
        except OSError as failure:
            reason = system_reason_of(failure)
        writable: list[_Connection] = []
        with self._lock:
            connection.is_sending = False
            connection.unsent = buffers
            if connection.is_closed:
                connection.socket.close()
            elif reason:
                self._protocol.link_lost(connection.link, reason, now_ms())
                writable = self._carry_out(self._protocol.take_work())
            elif buffers:
                self._to_write_on.append(connection)
                self._wake()
        for other in writable:
            self._write(other)

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                with self._lock:
                    timeout_s = self._time_to_sleep()
                events = self._selector.select(timeout_s)
                for key, mask in events:
                    connection = key.data
                    if connection is None:
                        self._drain_wake_ups()
                        continue
                    if mask & selectors.EVENT_WRITE:
                        self._write_on(connection)
                    if mask & selectors.EVENT_READ and not connection.is_closed:
                        self._read(connection)
                self._run_timers()
        except BaseException as crash:
            # A bug. Nobody may wait for ever because of it; the next call raises it.
            self._crash = crash
            with self._lock:
                self._is_stopping = True
                self._protocol.close(now_ms())
                self._carry_out(self._protocol.take_work())
            raise
        finally:
            self._keep_closed()
            self._release()
            if self._callbacks is not None:
                self._callbacks.put(None)

    def _time_to_sleep(self) -> float | None:
        now = now_ms()
        until = self._protocol.next_wakeup_ms()
        if now - self._last_traffic_ms < _DOZE_FOR_MS:
            until = min(until, now + _DOZE_MS)
        self._sleeps_until_ms = until
        return None if until == float("inf") else max(0.0, (until - now) / 1000.0)

    def _drain_wake_ups(self) -> None:
        try:
            while len(self._wake_receiver.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def _read(self, connection: _Connection) -> None:
        """Decoded outside the lock."""
        decoder = connection.link.decoder
        frames = []
        reason: str | ProtocolViolation = ""
        try:
            for _ in range(_READS_PER_WAKE_UP):
                buffer = decoder.get_buffer()
                count = connection.socket.recv_into(buffer)
                if count == 0:
                    reason = CLOSED
                    break
                frames += decoder.buffer_updated(count)
                if count < len(buffer):
                    break
        except BlockingIOError:
            pass
        except ProtocolViolation as violation:
            reason = violation
        except OSError as failure:
            reason = system_reason_of(failure)
        with self._lock:
            now = now_ms()
            self._last_traffic_ms = now
            if frames:
                self._protocol.frames_received(connection.link, frames, now)
            else:
                self._protocol.bytes_received(connection.link, now)
            if reason:
                self._protocol.link_lost(connection.link, reason, now)
            writable = self._carry_out(self._protocol.take_work())
        for other in writable:
            self._write(other)

    def _write_on(self, connection: _Connection) -> None:
        self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
        with self._lock:
            if connection.is_closed:
                return
            assert not connection.is_sending, "somebody wrote to a full socket"
            connection.is_sending = True
            buffers, connection.unsent = connection.unsent, []
        self._send(connection, buffers)
        self._write(connection)

    def _run_timers(self) -> None:
        """Connections that came, went or are full; then time."""
        writable: list[_Connection] = []
        with self._lock:
            now = now_ms()
            while self._dialled:
                writable += self._take_dialled(self._dialled.popleft(), now)
            if now >= self._protocol.next_wakeup_ms():
                self._protocol.advance(now)
                writable += self._carry_out(self._protocol.take_work())
        self._keep_closed()
        while self._to_tell:
            for call in self._events.told(self._to_tell.popleft()):
                self._call(call)
        while self._to_write_on:
            connection = self._to_write_on.popleft()
            if not connection.is_closed:
                self._selector.modify(
                    connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
                )
        for connection in writable:
            self._write(connection)

    def _call(self, call: Callable[[], None]) -> None:
        if self._callbacks is None:
            self._callbacks = queue.SimpleQueue()
            threading.Thread(
                target=_call_all, args=(self._callbacks,), name="quorumlog-callbacks", daemon=True
            ).start()
        self._callbacks.put(call)

    def _take_dialled(self, dialled: _Dialled, now: float) -> list[_Connection]:
        link, sock, error = dialled
        if sock is None:
            self._protocol.link_lost(link, error, now)
        elif link.state is LinkState.CLOSED:
            sock.close()
        else:
            link.context = _Connection(link, sock)
            self._selector.register(sock, selectors.EVENT_READ, link.context)
            self._protocol.link_connected(link, now)
        return self._carry_out(self._protocol.take_work())

    def _keep_closed(self) -> None:
        """Close sockets, but not under a thread that writes: the descriptor could be another's then."""
        while self._to_close:
            connection = self._to_close.popleft()
            self._selector.unregister(connection.socket)
            with self._lock:
                connection.is_closed = True
                if connection.is_sending:
                    with contextlib.suppress(OSError):
                        connection.socket.shutdown(socket.SHUT_RDWR)
                else:
                    connection.socket.close()

    def _release(self) -> None:
        with self._lock:
            self._is_released = True
            self._selector.close()
            self._wake_receiver.close()
            self._wake_sender.close()
            for dialled in self._dialled:
                if dialled.socket is not None:
                    dialled.socket.close()


def _call_all(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def _after(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """What is left of `buffers` after the first `sent` bytes."""
    for position, buffer in enumerate(buffers):
        if sent < len(buffer):
            rest = memoryview(buffer)[sent:]
            return [rest, *itertools.islice(buffers, position + 1, None)]
        sent -= len(buffer)
    assert sent == 0, sent
    return []
