"""HAService: master and slave on sockets, by RocketMQ's names, on one event loop and a disk thread."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from quorumlog.broker.replication.links import LinkWork, MasterLink, OldMasterLink, SlaveLink
from quorumlog.broker.replication.replica import BrokerReplica, ReplicaObserver
from quorumlog.broker.replication.rocketmq_links import RocketmqMasterLink, RocketmqSlaveLink
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError, LedgerError, StoreFailure
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls, principal_of, refusal_of, words_of
from quorumlog.server.disk_thread import DiskThread
from quorumlog.stray_log import StrayLog

AnyMasterLink = MasterLink | RocketmqMasterLink
AnySlaveLink = SlaveLink | RocketmqSlaveLink

log = logging.getLogger("quorumlog.broker")

HOT_BYTES = 8 << 20
"""The end of the log is in memory: it is read without the disk thread."""
_CHUNKS_AT_ONCE = 8
_RECEIVE_BYTES = 16 << 10


class AnyBytes:
    """A `Decoder` that passes bytes through. Each dialect has frames of its own."""

    missing_bytes = _RECEIVE_BYTES
    unfinished_bytes = 0

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> list[Frame]:
        return [Frame("", cast(Any, bytes(self._buffer[:count])), None)]


class HAConnection:
    """One slave, on its master. What it lacks is read and sent as fast as it takes it; it waits for no
    other slave, and no other for it. A `Session`. On the loop's thread."""

    def __init__(self, service: HAService, connection: Connection, link: AnyMasterLink) -> None:
        self._service = service
        self._replica = service.replica
        self._connection = connection
        self.link = link
        self._is_reading = False

    def frame(self, frame: Frame) -> None:
        self.link.feed(cast(Any, frame.message), self._replica.store.clock())
        if self.link.is_greeted:
            self._service.listener.greeted(self._connection)
        self.settle()

    def writable(self) -> None:
        self.settle()

    def lost(self) -> None:
        self.link.close("the slave closed the connection")
        if self.link.mark is not None:
            log.info("slave %s is gone: %s", self.link.mark.id, self.link.closed)
            self._replica.slave_lost(self.link.mark, self.link)
        self._service.connections.pop(self, None)

    def settle(self) -> None:
        """Everything that can be sent is."""
        if self._connection.closed:
            return
        self._flush()
        self._push()
        self._flush()
        if self.link.closed:
            if self.link.mark is None:
                self._service.strays.closing("a slave", self.link.closed)
            self._connection.close()

    def _flush(self) -> None:
        out, self.link.out = self.link.out, []
        if out:
            self._connection.write(out)

    def _push(self) -> None:
        """RocketMQ's WriteSocketService: what the slave lacks of the log."""
        link, log_ = self.link, self._replica.store.commit_log
        chunks = 0
        while (
            not (self._connection.is_full or self._is_reading or link.closed) and link.next_offset >= 0
        ):
            offset, end = link.next_offset, log_.max_offset
            size = min(link.most_chunk_bytes, end - offset, log_.files.stop_of(offset) - offset)
            if size <= 0 or not link.is_of_newest_run:
                return
            if end - offset > HOT_BYTES:
                self._is_reading = True
                self._service.reads.submit(partial(log_.read_bytes, offset, size), self._read)
            elif chunks >= _CHUNKS_AT_ONCE:
                self._service.loop.call_soon(self.settle)
                return
            else:
                chunks += 1
                try:
                    self._send(log_.read_bytes(offset, size))
                except (StoreFailure, OSError) as error:  # of a put, perhaps, which is not to blame
                    link.close(f"the log cannot be read: {error}")

    def _read(self, outcome: Any) -> None:
        self._is_reading = False
        if not isinstance(outcome, bytes):
            self.link.close(f"the log cannot be read: {outcome}")
        elif not self.link.closed:
            self._send(outcome)
        self.settle()

    def _send(self, body: bytes) -> None:
        if not body:
            self.link.close("retention has deleted messages that the slave lacks")
            return
        self.link.spoke(self._replica.store.clock())
        self._connection.write(self.link.data(body))


_MOST_WAITING_BYTES = 32 << 20
"""Of what was received and is not written: then nothing more is read."""
_REFUSED_WAIT = 10
"""Times the reconnect interval, where a master has said no."""
_EAGER_MS, _EAGER_WAIT_MS = 1000.0, 10.0
"""For so long after it learned of a master it retries this often: that one is about to lead."""


class _MasterSocket(asyncio.BufferedProtocol):
    def __init__(self, client: HAClient, link: AnySlaveLink) -> None:
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
    """A slave connects to its master, reports, reads, appends, and connects again. On the loop's
    thread."""

    def __init__(
        self, replica: BrokerReplica, make_link: Callable[[float], AnySlaveLink], tls: Tls | None = None
    ) -> None:
        self._tls = tls
        self.problem = "not connected yet"
        """Why it follows nobody; empty: it follows."""
        self.master_offset = 0
        """How far the master's log was, when it was last heard."""
        self.master_release = ""
        """Empty: nobody is followed, or the master does not say it."""
        self._replica = replica
        self._make_link = make_link
        self._socket: _MasterSocket | None = None
        self._busy = False
        self._was_silent = False
        """The last connection was closed without a word."""
        self._eager_until_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self, loop: asyncio.AbstractEventLoop, failed: Callable[[StoreFailure], None]) -> None:
        self._loop, self._failed = loop, failed
        self._disk = DiskThread("broker-ha", loop)

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
        self._end("the role has changed")
        self._connect_later(0)

    def _end(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()  # it may dial a machine that is gone, which takes minutes
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.link.close(reason)
            if socket.transport is not None:
                socket.transport.close()

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
        if self._closed or self._replica.role is not BrokerRole.SLAVE or self._socket is not None:
            return
        master = self._replica.master
        if master is None or not master.ha_address:
            self.problem = (
                "no master is known: name one with --master, or choose one with quorumlog broker switch"
            )
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

    def _made(self, link: AnySlaveLink) -> _MasterSocket:
        self._socket = _MasterSocket(self, link)
        return self._socket

    def ended(self, socket: _MasterSocket) -> None:
        if self._socket is not socket:
            return
        self._socket = None
        config = self._replica.store.config
        if self.problem != socket.link.closed:
            log.warning("this slave follows no master: %s", socket.link.closed)
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

    def report(self) -> None:
        """More is on this broker's disk."""
        socket, replica = self._socket, self._replica
        if socket is not None and not self._busy and not self.problem:
            socket.link.done(*replica.written_end, self.clock())
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

    def _start(self, socket: _MasterSocket, work: LinkWork) -> None:
        self._busy = True
        socket.taken()
        replica, link = self._replica, socket.link
        self.master_offset = max(work.master_offset, self.master_offset)

        def carry_out() -> tuple[int, int]:
            if work.follow is not None:
                return replica.follow(work.follow)
            if work.begin_at >= 0:
                replica.store.begin_anew_at(work.begin_at)
            return replica.take(work, link.epoch, asks_flush=link.asks_flush)

        def done(outcome: Any) -> None:
            self._busy = False
            if isinstance(outcome, StoreFailure):
                self._failed(outcome)
            if isinstance(outcome, StoreFailure | LedgerError):
                link.close(str(outcome))
            elif not link.closed:
                if work.follow is not None and isinstance(link, SlaveLink):
                    self.master_offset = work.follow.welcome.max_offset
                    self.master_release = work.follow.welcome.release
                    link.follows(work.follow.start_offset)
                self.problem = ""
                written, flushed = outcome
                link.done(written, flushed, self.clock())
            if self._socket is socket:
                self.settle()

        self._disk.submit(carry_out, done)

    def tick(self, now_ms: float) -> None:
        if self._socket is not None:
            self._socket.link.tick(now_ms)
            self.settle()
        elif self._replica.role is BrokerRole.SLAVE:
            self._connect_later(self._replica.store.config.ha_reconnect_interval)

    def close(self) -> None:
        """Stop following; then `join`."""
        self._closed = True
        self._end("the broker stops")

    def join(self) -> None:
        """Blocks until received bytes are written. Off the loop."""
        self._disk.close()


def _words_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return words_of(error)
    return getattr(error, "strerror", None) or str(error) or "it does not answer"


TICK_S = 0.05
CONFIRM_INTERVAL_S = 0.002
"""Least interval of confirm offsets to slaves, if nothing else is sent."""
QUORUMLOG, ROCKETMQ = "quorumlog", "rocketmq"


class Wakeup:
    """Any thread, however often: one call on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._is_set = False
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        with self._lock:
            self._is_set = False
        self._call()


class HAService(ReplicaObserver):
    """A broker's replication, whichever role it has: it lets slaves in, or follows a master. On the
    loop's thread, except calls by a replica."""

    def __init__(
        self, replica: BrokerReplica, dialect: str = QUORUMLOG, bind: str = "", tls: Tls | None = None
    ) -> None:
        """`bind`: the address to listen on, if not the advertised one. `tls`: between master and slaves;
        Java's have none. Raises ConfigError."""
        if dialect not in (QUORUMLOG, ROCKETMQ):
            raise ConfigError(f"--ha-dialect must be {QUORUMLOG} or {ROCKETMQ}, not {dialect!r}")
        self.replica = replica
        self.dialect = dialect
        self._tls = tls if dialect == QUORUMLOG else None
        self._host, self._port = parse_address(bind or replica.me.ha_address)
        self.listener = Listener(
            "the broker",
            self._came,
            decoder=AnyBytes,
            has_peers_only=True,
            option="--ha-port",
            tls=self._tls,
        )
        self.connections: dict[HAConnection, None] = {}
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._is_noting = False
        self._to_master: SlaveLink | None = None
        """The newest link to a master."""
        self.strays = StrayLog(log)
        self.client = HAClient(replica, self._link_to_master, self._tls)
        config = replica.store.config
        self._intervals = {
            "heartbeat_ms": config.ha_send_heartbeat_interval,
            "silence_ms": config.ha_housekeeping_interval,
        }

    async def start(self, failed: Callable[[StoreFailure], None], changed: Callable[[], None]) -> None:
        """`changed` is called on the loop: the role, the master or the epoch is another one. Raises
        ConfigError if the port is taken."""
        loop = asyncio.get_running_loop()
        self.loop, self._failed, self._changed = loop, failed, changed
        self.reads = DiskThread("broker-ha-reads", loop)
        self._records = DiskThread("broker-ha-records", loop)
        self._turn, self._thread = LoopTurn.of(loop), threading.get_ident()
        self._grown = Wakeup(loop, self._push)
        self._confirmed = Wakeup(loop, self._confirm_later)
        self._roles = Wakeup(loop, self._role_changed)
        self.client.start(loop, failed)
        self.replica.observer = self
        await self.listener.open(self._host, self._port)
        self._role_changed()
        self._tick()

    def role_changed(self) -> None:
        self._roles()

    def confirmed(self) -> None:
        self._confirmed()

    def grown(self) -> None:
        if threading.get_ident() == self._thread:
            self._push()  # what was put: its slaves have the longest way to go
        else:
            self._grown()

    # ---------------------------------------------------------------- links

    def _came(self, connection: Connection) -> None:
        def foreign(slave_id: str) -> str:
            """Why it is not that slave, by its certificate; empty: it is, or there is no TLS."""
            tls = self._tls
            return "" if tls is None else refusal_of(connection.certificate, tls.cluster, slave_id)

        link = self._link_to_slave(connection.peer_host, self.replica.store.clock(), foreign)
        connection.session = session = HAConnection(self, connection, link)
        connection.is_always_heard = True  # what a slave says is small, and it is silent to who is deaf
        self.connections[session] = None

    def _link_to_slave(
        self, host: str, now_ms: float, foreign: Callable[[str], str] = lambda slave_id: ""
    ) -> AnyMasterLink:
        replica = self.replica
        if self.dialect == QUORUMLOG:
            refusal = "" if replica.is_leading else f"broker {replica.id} is not the master"
            return MasterLink(replica, now_ms, **self._intervals, refusal=refusal, foreign=foreign)
        size = replica.store.config.ha_transfer_batch_size
        link = RocketmqMasterLink(replica, host, now_ms, chunk_bytes=size, **self._intervals)
        if not replica.is_leading:
            link.close("this broker is not the master")
        return link

    def _link_to_master(self, now_ms: float) -> AnySlaveLink:
        own = self.replica.own_log()
        if self.dialect == ROCKETMQ:
            return RocketmqSlaveLink(
                own.max_offset,
                own.file_bytes,
                now_ms,
                own_tail=self.replica.store.last_record(),
                reports_flushed=own.is_sync_flush,
                **self._intervals,
            )
        last = self._to_master
        if isinstance(last, OldMasterLink):
            is_old = last.master is not None
        else:  # who closes without a word to our greeting may be of the release before
            is_old = last is not None and not last.is_heard
        self._to_master = (OldMasterLink if is_old else SlaveLink)(own, now_ms, **self._intervals)
        return self._to_master

    # ---------------------------------------------------------------- events

    def _role_changed(self) -> None:
        self._to_each(lambda link: link.end("the role, or the list, has changed"))
        self.client.restart()
        self._changed()

    def _push(self) -> None:
        if self.replica.role is BrokerRole.SLAVE:
            self.client.report()
            return
        self._turn.is_begun = True
        try:
            for connection in list(self.connections):
                connection.settle()
        finally:
            self._turn.flush()

    def _confirm_later(self) -> None:
        if self._confirm_timer is None:
            self._confirm_timer = self.loop.call_later(CONFIRM_INTERVAL_S, self._confirm)

    def _confirm(self) -> None:
        self._confirm_timer = None
        self._to_each(lambda link: link.confirmed())

    def _to_each(self, act: Callable[[AnyMasterLink], None]) -> None:
        for connection in list(self.connections):
            act(connection.link)
            connection.settle()

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        now_ms = self.replica.store.clock()
        self._to_each(lambda link: link.tick(now_ms))
        self.client.tick(now_ms)
        self.replica.group_transfer.expire(now_ms)
        if self.replica.outlasts_its_drain:
            self._records.submit(self.replica.end_drain, lambda outcome: None)
        self._note()

    def _note(self) -> None:
        """What a master has to write down for its slaves to know it."""
        replica = self.replica
        if self._is_noting or replica.role is BrokerRole.SLAVE:
            return
        if replica.has_confirmed_run:
            work = replica.note_confirmed
        elif replica.has_ahead_to_note:
            work = replica.note_ahead
        elif joining := replica.joining():
            work = partial(replica.add, joining)
        else:
            return
        self._is_noting = True
        self._records.submit(work, self._noted)

    def _noted(self, outcome: object) -> None:
        self._is_noting = False
        if isinstance(outcome, StoreFailure):
            self._failed(outcome)

    def submit(self, work: Callable[[], None], done: Callable[[object], None]) -> None:
        """A change of roles, which blocks: off the loop, in order."""
        self._records.submit(work, done)

    def stop(self) -> None:
        """No connection is left; then `join`."""
        self.listener.close()
        self._ticker.cancel()
        self.replica.stop_acknowledging()
        self._to_each(lambda link: link.close("the broker stops"))
        self.client.close()

    def join(self) -> None:
        """Blocks until received bytes are written. Off the loop."""
        self.client.join()
        self.reads.close()
        self._records.close()
