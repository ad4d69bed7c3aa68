"""The asyncio loop under an `RpcProtocol`, shared by all tasks of an asyncio client.

Requests submitted in one turn are written at its end, with one write a connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from quorumlog.config import parse_address
from quorumlog.errors import ProtocolViolation
from quorumlog.net.credentials import ClientUser, user_of_clients
from quorumlog.net.loop_thread import OwnLoop
from quorumlog.net.rpc.calls import CLOSED, Call, Link, LinkState
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.view import GroupEvent
from quorumlog.net.system import now_ms, system_reason_of
from quorumlog.net.tls import ClientTls, tls_of_clients, words_of


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, io: IoLoop, link: Link) -> None:
        self._io = io
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports are no subclass of asyncio's.
        self._io._connected(self._link, cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._link.decoder.buffer_updated(nbytes)
        except ProtocolViolation as violation:
            self._io._lost(self._link, violation)
            return
        if frames:
            self._io._protocol.frames_received(self._link, frames, now_ms())
            self._io._carry_out()
        else:
            self._io._protocol.bytes_received(self._link, now_ms())

    def connection_lost(self, exc: Exception | None) -> None:
        reason = _reason_of(exc) if isinstance(exc, OSError) else CLOSED
        self._io._lost(self._link, reason)


def _reason_of(failure: OSError | UnicodeError) -> str:
    is_of_tls = isinstance(failure, ssl.SSLError) or not str(failure)
    return words_of(failure) if is_of_tls else system_reason_of(failure)


class IoLoop:
    def __init__(
        self,
        protocol: RpcProtocol,
        on_event: Callable[[GroupEvent], Iterable[Callable[[], None]]] = lambda event: (),
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`on_event`: gets events of the group; returns the calls to make on the loop. `tls`: None: that
        of the process (`clients_use`), or else connections are plain. `user`: None: that of the process
        (`clients_are`), or else none."""
        protocol.user = user or user_of_clients()
        self._tls = tls or tls_of_clients()
        self._protocol = protocol
        if self._tls is not None:  # with TLS 1.3 a client hears of no refusal before it reads
            protocol.ungreeted_hint = " Or does it require another certificate (--tls-cert)?"
        self._on_event = on_event
        self._links_to_write: dict[Link, None] = {}
        self._is_write_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = float("inf")
        self._dials: dict[Link, asyncio.Task[None]] = {}
        self.own_loop = OwnLoop()

    @property
    def has_lost_loop(self) -> bool:
        """The loop was closed: no task waits any more, and no transport can be used."""
        return self.own_loop.loop is not None and self.own_loop.loop.is_closed()

    # ---------------------------------------------------------------- tasks

    def submit(self, calls: Iterable[Call]) -> None:
        loop, now = self.own_loop.running(), now_ms()
        for call in calls:
            if call.on_done is None:
                call.context = loop.create_future()
            self._protocol.submit(call, now)
        self._carry_out()

    def submit_at_end(self, calls: Iterable[Call]) -> None:
        """Called at the end of a turn: written at once, since another turn would only be waiting."""
        self._is_write_scheduled = True
        try:
            self.submit(calls)
        finally:
            self._write()

    def cancel(self, calls: Iterable[Call]) -> None:
        """These have no waiters any more."""
        for call in calls:
            self._protocol.cancel(call, now_ms())
        self._carry_out()

    async def wait(self, call: Call) -> None:
        """Until it is done; the protocol sees to its deadline. One that is not kept is cancelled
        with the waiter."""
        if call.is_done:
            return
        if call.is_kept:
            await asyncio.shield(call.context)
            return
        try:
            await call.context
        except asyncio.CancelledError:
            self.cancel((call,))
            raise

    async def close(self) -> None:
        """May be called twice."""
        self._protocol.close(now_ms())
        if self.has_lost_loop:
            for link in self._protocol.take_work().close:
                link.context = None  # forgotten, a transport closes its socket
            return
        self._carry_out()
        if self._timer is not None:
            self._timer.cancel()
        dials = list(self._dials.values())
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)

    # ---------------------------------------------------------------- the protocol's work

    def _carry_out(self) -> None:
        work = self._protocol.take_work()
        for call in work.completed:
            waiter = call.context
            if not waiter.done():  # the waiter was cancelled
                waiter.set_result(None)
        for link in work.close:
            if link.context is not None:
                link.context.abort()
            elif link in self._dials:  # the system would try for minutes
                self._dials[link].cancel()
        for link in work.dial:
            dial = asyncio.get_running_loop().create_task(self._dial(link))
            self._dials[link] = dial
            dial.add_done_callback(partial(self._dials.pop, link))
        if work.write:
            self._links_to_write.update(work.write)
            if not self._is_write_scheduled:
                self._is_write_scheduled = True
                asyncio.get_running_loop().call_soon(self._write)
        for event in work.events:
            for callback in self._on_event(event):
                asyncio.get_running_loop().call_soon(callback)
        wake_at = self._protocol.next_wakeup_ms()
        if wake_at < self._timer_at_ms:
            self._set_timer(wake_at)

    def _write(self) -> None:
        self._is_write_scheduled = False
        links, self._links_to_write = self._links_to_write, {}
        for link in links:
            # One that was lost in this turn is closed by now: uvloop would raise, and skip the rest.
            if link.context is not None and link.outbox and not link.context.is_closing():
                buffers, link.outbox = link.outbox, []
                link.context.writelines(buffers)

    def _set_timer(self, wake_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = wake_at
        delay_s = max(0.0, (wake_at - now_ms()) / 1000.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = float("inf")
        self._protocol.advance(now_ms())
        self._carry_out()

    async def _dial(self, link: Link) -> None:
        host, port = parse_address(link.address)
        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = {"ssl": self._tls.context, "server_hostname": host}
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self, link), host, port, **encrypted
            )
        except (OSError, UnicodeError) as failure:
            self._lost(link, _reason_of(failure))

    def _connected(self, link: Link, transport: asyncio.Transport) -> None:
        if link.state is LinkState.CLOSED:
            transport.abort()
            return
        link.context = transport
        self._protocol.link_connected(link, now_ms())
        self._carry_out()

    def _lost(self, link: Link, reason: str | ProtocolViolation) -> None:
        if link.state is not LinkState.CLOSED:
            self._protocol.link_lost(link, reason, now_ms())
            self._carry_out()
