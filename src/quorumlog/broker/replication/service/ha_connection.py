"""HAConnection: one slave, on its master. What it lacks is read and sent as fast as it takes it; it
waits for no other slave, and no other for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from quorumlog.broker.replication.protocol.master_link import LinkToSlave
from quorumlog.broker.replication.replica import Replica
from quorumlog.errors import StoreFailure
from quorumlog.net.connection import Connection
from quorumlog.net.frame import Frame
from quorumlog.server.disk_thread import DiskThread
from quorumlog.stray_log import StrayLog

log = logging.getLogger("quorumlog.broker")

HOT_BYTES = 8 << 20
"""The end of the log is in memory: it is read without the disk thread."""
_CHUNKS_AT_ONCE = 8
_RECEIVE_BYTES = 16 << 10


class AnyBytes:
    """A `Decoder`: what comes as it comes. Each dialect has frames of its own."""

    missing_bytes = _RECEIVE_BYTES
    unfinished_bytes = 0

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> list[Frame]:
        return [Frame("", cast(Any, bytes(self._buffer[:count])), None)]


class WriteSocketService:
    """What the slave lacks."""

    def __init__(self, connection: HAConnection, disk: DiskThread) -> None:
        self._connection = connection
        self._disk = disk
        self._is_reading = False

    def push(self) -> None:
        connection = self._connection
        link, log_ = connection.link, connection.replica.store.commit_log
        chunks = 0
        while not (connection.is_full or self._is_reading or link.closed) and link.next_offset >= 0:
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
                try:
                    self._send(log_.read_bytes(offset, size))
                except (StoreFailure, OSError) as error:  # of a put, perhaps, which is not to blame
                    link.close(f"the log cannot be read: {error}")

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


class HAConnection:
    """A `Session`. On the loop's thread."""

    def __init__(
        self,
        connection: Connection,
        replica: Replica,
        link: LinkToSlave,
        disk: DiskThread,
        again: Callable[[Callable[[], None]], object],
        greeted: Callable[[Connection], None],
        lost: Callable[[HAConnection], None],
        strays: StrayLog,
    ) -> None:
        """`again`: calls something in the next turn."""
        self._connection = connection
        self.replica = replica
        self.link = link
        self._again = again
        self._greeted = greeted
        self._lost = lost
        self._strays = strays
        self.write_socket_service = WriteSocketService(self, disk)

    def frame(self, frame: Frame) -> None:
        self.link.feed(cast(Any, frame.message), self.replica.store.clock())
        if self.link.is_greeted:
            self._greeted(self._connection)
        self.settle()

    def writable(self) -> None:
        self.settle()

    def lost(self) -> None:
        self.link.close("the slave closed the connection")
        if self.link.mark is not None:
            log.info("slave %s is gone: %s", self.link.mark.id, self.link.closed)
            self.replica.slave_lost(self.link.mark, self.link)
        self._lost(self)

    @property
    def is_full(self) -> bool:
        return self._connection.is_full

    def again(self) -> None:
        self._again(self.settle)

    def settle(self) -> None:
        """Everything that can be sent is."""
        if self._connection.closed:
            return
        self._flush()
        self.write_socket_service.push()
        self._flush()
        if self.link.closed:
            if self.link.mark is None:
                self._strays.closing("a slave", self.link.closed)
            self._connection.close()

    def _flush(self) -> None:
        out, self.link.out = self.link.out, []
        if out:
            self.write(out)

    def write(self, buffers: list[Any]) -> None:
        self._connection.write(buffers)

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
