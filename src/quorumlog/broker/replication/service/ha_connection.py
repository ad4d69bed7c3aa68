"""HAConnection: one slave, on its master. What it lacks is read and sent as fast as it takes it; it
waits for no other slave, and no other for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from quorumlog.broker.replication.protocol.master_link import LinkToSlave
from quorumlog.broker.replication.replica import Replica
from quorumlog.client_guard import contain
from quorumlog.errors import ProtocolViolation
from quorumlog.server.disk_thread import DiskThread
from quorumlog.stray_log import StrayLog

log = logging.getLogger("quorumlog.broker")

HOT_BYTES = 8 << 20
"""The end of the log is in memory: it is read without the disk thread."""
_WRITE_BUFFER_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 8

LinkMaker = Callable[[str, float], LinkToSlave]


class ReadSocketService:
    """What the slave has acknowledged."""

    def __init__(self, connection: HAConnection) -> None:
        self._connection = connection

    def received(self, data: bytes) -> None:
        connection = self._connection
        connection.link.feed(data, connection.replica.store.clock())
        connection.settle()


class WriteSocketService:
    """What the slave lacks."""

    def __init__(self, connection: HAConnection, disk: DiskThread) -> None:
        self._connection = connection
        self._disk = disk
        self._is_reading = False
        self.is_paused = False

    def push(self) -> None:
        connection = self._connection
        link, log_ = connection.link, connection.replica.store.commit_log
        chunks = 0
        while not (self.is_paused or self._is_reading or link.closed) and link.next_offset >= 0:
            offset, end = link.next_offset, log_.max_offset
            size = min(link.most_chunk_bytes, end - offset, log_.files.stop_of(offset) - offset)
            if size <= 0 or not link.is_of_newest_run:
                return
            if end - offset > HOT_BYTES:
                self._is_reading = True
                self._disk.submit(partial(log_.read_bytes, offset, size), self._read)
            elif chunks >= _CHUNKS_AT_ONCE:
                connection.again()
                return
            else:
                chunks += 1
                self._send(log_.read_bytes(offset, size))

    def _read(self, outcome: Any) -> None:
        self._is_reading = False
        if not isinstance(outcome, bytes):
            self._connection.link.close(f"the log cannot be read: {outcome}")
        elif not self._connection.link.closed:
            self._send(outcome)
        self._connection.settle()

    def _send(self, body: bytes) -> None:
        connection = self._connection
        if not body:
            connection.link.close("retention has deleted what the slave lacks")
            return
        connection.link.spoke(connection.replica.store.clock())
        connection.write(connection.link.data(body))


class HAConnection(asyncio.Protocol):
    """On the loop's thread."""

    def __init__(
        self,
        replica: Replica,
        loop: asyncio.AbstractEventLoop,
        make_link: LinkMaker,
        disk: DiskThread,
        made: Callable[[HAConnection], None],
        lost: Callable[[HAConnection], None],
        strays: StrayLog,
    ) -> None:
        self.replica = replica
        self._loop = loop
        self._make_link = make_link
        self._made = made
        self._lost = lost
        self._strays = strays
        self._transport: asyncio.Transport | None = None
        self.read_socket_service = ReadSocketService(self)
        self.write_socket_service = WriteSocketService(self, disk)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        host = self._transport.get_extra_info("peername")[0]
        self.link = self._make_link(host, self.replica.store.clock())
        self._made(self)
        self.settle()

    def data_received(self, data: bytes) -> None:
        try:
            self.read_socket_service.received(data)
        except Exception as error:
            contain(error, self)

    def violate(self, violation: ProtocolViolation) -> None:
        """See `client_guard`."""
        self.link.close(str(violation))
        self.settle()

    def pause_writing(self) -> None:
        self.write_socket_service.is_paused = True

    def resume_writing(self) -> None:
        self.write_socket_service.is_paused = False
        self.settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.link.close("the slave closed the connection")
        if self.link.mark is not None:
            log.info("slave %s is gone: %s", self.link.mark.id, self.link.closed)
            self.replica.slave_lost(self.link.mark, self.link)
        self._lost(self)

    def again(self) -> None:
        self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """Everything that can be sent is."""
        if self._transport is None:
            return
        self._flush()
        self.write_socket_service.push()
        self._flush()
        if self.link.closed:
            if self.link.mark is None:
                self._strays.closing("a slave", self.link.closed)
            self._transport.close()

    def _flush(self) -> None:
        out, self.link.out = self.link.out, []
        if out:
            self.write(out)

    def write(self, buffers: list[Any]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(buffers)

    def tick(self, now_ms: float) -> None:
        self.link.tick(now_ms)
        self.settle()

    def end(self, reason: str) -> None:
        """The slave may come back at once."""
        self.link.end(reason)
        self.settle()

    def close(self, reason: str) -> None:
        self.link.close(reason)
        self.settle()
