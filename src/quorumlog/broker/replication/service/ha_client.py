"""HAClient: a slave connects to its master, reports, reads, appends, and connects again."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

from quorumlog.broker.replication.protocol.slave_link import LinkToMaster, Work
from quorumlog.broker.replication.replica import Replica, Written
from quorumlog.broker.store.log_files import Role
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.net.tls import Tls, principal_of, refusal_of, words_of
from quorumlog.server.disk_thread import DiskThread

log = logging.getLogger("quorumlog.broker")

_MOST_WAITING_BYTES = 32 << 20
"""Of what was received and is not written: then nothing more is read."""
_REFUSED_WAIT = 10
"""Times the reconnect interval, where a master has said no."""
_EAGER_MS, _EAGER_WAIT_MS = 1000.0, 10.0
"""So long after it was told of a master it tries again after so little: that one is about to lead."""


class _MasterSocket(asyncio.BufferedProtocol):
    def __init__(self, client: HAClient, link: LinkToMaster) -> None:
        self.client = client
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.waiting_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        foreign = self.client.foreign(transport.get_extra_info("ssl_object"))
        if foreign:
            self.link.close(foreign)
            self.link.out.clear()
        self.client.settle()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.link.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.waiting_bytes += nbytes
        if self.waiting_bytes > _MOST_WAITING_BYTES and self.transport is not None:
            self.transport.pause_reading()
        self.link.buffer_updated(nbytes, self.client.clock())
        self.client.settle()

    def taken(self) -> None:
        self.waiting_bytes = 0
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.link.close("the master closed the connection")
        self.client.ended(self)


class HAClient:
    """On the loop's thread but for `wakeup`."""

    def __init__(
        self,
        replica: Replica,
        loop: asyncio.AbstractEventLoop,
        make_link: Callable[[float], LinkToMaster],
        failed: Callable[[StoreFailure], None],
        tls: Tls | None = None,
    ) -> None:
        self._tls = tls
        self.problem = "not connected yet"
        """Why it follows nobody; empty: it follows."""
        self.master_offset = 0
        """How far the master's log was, when it was last heard."""
        self.master_release = ""
        """Empty: nobody is followed, or the master does not say it."""
        self._replica = replica
        self._loop = loop
        self._make_link = make_link
        self._failed = failed
        self._disk = DiskThread("broker-ha", loop)
        self._socket: _MasterSocket | None = None
        self._busy = False
        self._was_silent = False
        """The last connection was closed without a word."""
        self._eager_until_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def clock(self) -> float:
        return self._replica.store.clock()

    # ---------------------------------------------------------------- connections

    def foreign(self, encrypted: ssl.SSLObject | None) -> str:
        """Why this is not the master that is followed, by its certificate; empty: it is."""
        master = self._replica.master
        if self._tls is None or encrypted is None:
            return ""
        certificate = encrypted.getpeercert()
        principal = principal_of(certificate)
        # The id of a master that was only named by its address is not known yet.
        named = master.id if master is not None and master.id else principal.name if principal else ""
        reason = refusal_of(certificate, self._tls.cluster, named)
        return reason and f"this is not the master: {reason}"

    def restart(self) -> None:
        """The role, the master or the epoch is another one."""
        self.master_release = ""
        self.problem = "not connected yet"
        self._eager_until_ms = self.clock() + _EAGER_MS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()  # it may dial a machine that is gone, which takes minutes
        if self._socket is not None:
            self._drop(self._socket, "the role has changed")
        self._connect_later(0)

    def _connect_later(self, delay_ms: float) -> None:
        if self._closed or self._timer is not None:
            return
        self._timer = self._loop.call_later(delay_ms / 1000, self._connect)

    def _connect(self) -> None:
        self._timer = None
        # A new link begins with where the log ends: what an old one brought must be written by then.
        if self._busy or (self._task is not None and not self._task.done()):
            self._connect_later(10)
            return
        if self._closed or self._replica.role is not Role.SLAVE or self._socket is not None:
            return
        master = self._replica.master
        if master is None or not master.ha_address:
            self.problem = "no master is known: name one with --master, or make one with switch"
            return
        self._task = self._loop.create_task(self._open(master.ha_address))

    async def _open(self, address: str) -> None:
        config = self._replica.store.config
        try:
            host, port = parse_address(address)
            link = self._make_link(self.clock())
            context = None if self._tls is None else self._tls.dialling
            async with asyncio.timeout(config.ha_housekeeping_interval / 1000):
                await self._loop.create_connection(lambda: self._made(link), host, port, ssl=context)
        except (OSError, ConfigError) as error:
            self.problem = f"no master at {address}: {_words_of(error)}"
            self._socket = None
            self._connect_later(config.ha_reconnect_interval)

    def _made(self, link: LinkToMaster) -> _MasterSocket:
        self._socket = _MasterSocket(self, link)
        return self._socket

    def _drop(self, socket: _MasterSocket, reason: str) -> None:
        socket.link.close(reason)
        if self._socket is socket:
            self._socket = None
        if socket.transport is not None:
            socket.transport.close()

    def ended(self, socket: _MasterSocket) -> None:
        if self._socket is not socket:
            return
        self._socket = None
        config = self._replica.store.config
        if self.problem != socket.link.closed:
            log.warning("this slave follows nobody: %s", socket.link.closed)
        self.problem = socket.link.closed
        wait_ms = float(config.ha_reconnect_interval)
        was_silent, self._was_silent = self._was_silent, not socket.link.is_heard
        if socket.link.refused:
            wait_ms *= _REFUSED_WAIT
        elif not socket.link.is_heard and not was_silent:
            wait_ms = 0.0  # it may speak what the release before spoke
        elif socket.link.comes_back:
            self._eager_until_ms = self.clock() + _EAGER_MS
            wait_ms = 0.0
        elif self.clock() < self._eager_until_ms:
            wait_ms = min(wait_ms, _EAGER_WAIT_MS)
        self._connect_later(wait_ms)

    # ---------------------------------------------------------------- work

    def wakeup(self) -> None:
        """More is on the own disk. Any thread."""
        self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        socket = self._socket
        if socket is not None and not self._busy and not self.problem:
            replica = self._replica
            socket.link.done(replica.max_offset, replica.flushed_offset, self.clock())
            self.settle()

    def settle(self) -> None:
        socket = self._socket
        if socket is None or socket.transport is None:
            return  # what the link says waits until the loop has made the connection
        link = socket.link
        out, link.out = link.out, []
        if out and not socket.transport.is_closing():
            socket.transport.writelines(out)
        if not self._busy and not link.closed:
            work = link.take_work()
            if work:
                self._start(socket, work)
        transport = socket.transport
        if link.closed and transport is not None:
            self.ended(socket)
            transport.close()

    def _start(self, socket: _MasterSocket, work: Work) -> None:
        self._busy = True
        socket.taken()
        replica, link = self._replica, socket.link
        self.master_offset = max(work.master_offset, self.master_offset)

        def carry_out() -> Written:
            if work.follow is not None:
                return replica.follow(work.follow)
            if work.begin_at >= 0:
                replica.store.begin_anew_at(work.begin_at)
            return replica.take(work, link.epoch, asks_flush=link.asks_flush)

        def done(outcome: Any) -> None:
            self._busy = False
            if isinstance(outcome, StoreFailure):
                self._failed(outcome)
                link.close(str(outcome))
            elif not isinstance(outcome, Written):
                link.close(str(outcome))
            elif not link.closed:
                if work.follow is not None:
                    self.master_offset = work.follow.welcome.max_offset
                    self.master_release = work.follow.welcome.release
                    link.follows(work.follow.start_offset)
                self.problem = ""
                link.done(*outcome, self.clock())
            if self._socket is socket:
                self.settle()

        self._disk.submit(carry_out, done)

    def tick(self, now_ms: float) -> None:
        if self._socket is not None:
            self._socket.link.tick(now_ms)
            self.settle()
        elif self._replica.role is Role.SLAVE:
            self._connect_later(self._replica.store.config.ha_reconnect_interval)

    def close(self) -> None:
        """It follows nobody any more; then `join`."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._socket is not None:
            self._drop(self._socket, "the broker stops")

    def join(self) -> None:
        """Blocks until what was received is written. Off the loop."""
        self._disk.close()


def _words_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return words_of(error)
    return getattr(error, "strerror", None) or str(error) or "it does not answer"
