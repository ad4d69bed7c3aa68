"""Both ends of RocketMQ 5's plain HA protocol (`--ha-dialect rocketmq`).

    slave to master   8 bytes big-endian, again and again: where the slave's log ends
    master to slave   offset 8, size 4, so many bytes of the commit log from there on; size 0: it lives

The first offset of a slave fixes where it continues. It has no epoch, no identity and no word about the
disk: a slave that has other bytes than its master below that offset is not noticed. So a slave of ours
requests its last record again, and continues if it is the same; and a master of ours remembers where the
logs of slaves ended that had more than it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from quorumlog.broker.epochs import Epoch, Peer
from quorumlog.broker.replication.links import LinkToMaster, LinkToSlave, RecordAssembler
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation

if TYPE_CHECKING:
    from quorumlog.broker.replication.replica import BrokerReplica

_OFFSET = struct.Struct(">q")
_HEAD = struct.Struct(">qi")
_MOST_BODY_BYTES = 4 << 20
_ROOM_BYTES = 64 << 10


class RocketmqMasterLink(LinkToSlave):
    def __init__(
        self, side: BrokerReplica, host: str, now_ms: float, *, chunk_bytes: int, **intervals: float
    ) -> None:
        """`host`: two connections from one host count as one slave. Both are served: they may be of two
        slaves."""
        super().__init__(side, now_ms, **intervals)
        self.most_chunk_bytes = chunk_bytes
        self._peer = Peer(id=host, directory_id=host)
        self._received = bytearray()

    def feed(self, data: Buffer, now_ms: float) -> None:
        self._heard_ms = now_ms
        self._received += data
        whole = len(self._received) // _OFFSET.size * _OFFSET.size
        for (offset,) in _OFFSET.iter_unpack(bytes(self._received[:whole])):
            if self.closed:
                return
            self._take(offset)
        del self._received[:whole]

    def _take(self, offset: int) -> None:
        side = self._side
        if self.mark is None and side.is_ahead(self._peer.id, offset):
            self.close(
                f"the slave's log ends at {offset}, where the master's had not come when that slave came"
                " first: they are not the same. Empty the slave's directory"
            )
        elif not 0 <= offset <= side.max_offset:
            self.close(f"the slave's log ends at {offset}, the master's at {side.max_offset}")
        elif self.mark is None and 0 < offset < side.min_offset:
            self.close(f"the slave's log ends at {offset}, the master's begins at {side.min_offset}")
        else:
            if self.mark is None:
                # RocketMQ sends an empty slave its last file only; it takes all of them as well.
                self.next_offset = offset or side.min_offset
                self.mark = side.slave_came(self._peer, self, None)
                assert self.mark is not None
            side.slave_reported(self.mark, offset, offset)

    def data(self, body: bytes) -> list[Buffer]:
        head = _HEAD.pack(self.next_offset, len(body))
        self.next_offset += len(body)
        return [head, body]

    def _say_something(self, now_ms: float) -> None:
        if self.next_offset >= 0:
            self._spoke_ms = now_ms
            self.out.append(_HEAD.pack(self.next_offset, 0))


class RocketmqSlaveLink(LinkToMaster):
    epoch = Epoch()
    asks_flush = False

    def __init__(
        self,
        max_offset: int,
        file_bytes: int,
        now_ms: float,
        *,
        own_tail: tuple[int, bytes] | None = None,
        reports_flushed: bool,
        **intervals: float,
    ) -> None:
        """`own_tail`: where the last record begins, and its bytes; None: it is not known."""
        super().__init__(now_ms, **intervals)
        self.is_heard = True  # there is one dialect to speak
        first, self._tail = own_tail or (max_offset, b"")
        self._compared = first
        """The next byte that comes of what the own log has."""
        self._tail_stop = first + len(self._tail)
        self._max_offset = max_offset
        self.out = [_OFFSET.pack(first)]
        self._is_empty = max_offset == 0
        self._file_bytes = file_bytes
        self._assembler = RecordAssembler(max_offset, file_bytes)
        self._received = bytearray()
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._reports_flushed = reports_flushed
        self._reported = first

    def get_buffer(self) -> memoryview:
        return self._room

    def buffer_updated(self, count: int, now_ms: float) -> None:
        self.feed(self._room[:count], now_ms)

    def feed(self, data: Buffer, now_ms: float) -> None:
        self._heard_ms = now_ms
        self._received += data
        received, at = self._received, 0
        try:
            while len(received) - at >= _HEAD.size and not self.closed:
                offset, size = _HEAD.unpack_from(received, at)
                if not 0 <= size <= _MOST_BODY_BYTES:
                    raise ProtocolViolation("these are no frames of RocketMQ's HA: see --ha-dialect")
                stop = at + _HEAD.size + size
                if len(received) < stop:
                    break
                body = bytes(received[at + _HEAD.size : stop])
                at = stop
                self._take(offset, body)
        except ProtocolViolation as violation:
            self.close(str(violation))
        del received[:at]

    def _take(self, offset: int, body: bytes) -> None:
        if self._is_empty and offset > 0:
            if offset % self._file_bytes:
                raise ProtocolViolation(f"an empty slave begins with a file, not at {offset}")
            self._work.begin_at = offset
            self._assembler = RecordAssembler(offset, self._file_bytes)
        if self._compared < self._max_offset:
            offset, body = self._compare(offset, body)
            if self._compared < self._max_offset:
                return
            self._reported = self._max_offset
            self.out.append(_OFFSET.pack(self._max_offset))
        expected = self._assembler.position
        if offset != expected:
            raise ProtocolViolation(
                f"the master sends from {offset} on, and this log ends at {expected}"
            )
        if body:
            self._is_empty = False
            self._work.records += self._assembler.feed(body)
        self._work.master_offset = offset + len(body)

    def _compare(self, offset: int, body: bytes) -> tuple[int, bytes]:
        """What is behind the own log's end, once all that is in it has come."""
        at = self._compared
        if offset != at:
            raise ProtocolViolation(f"the master sends from {offset} on, and was asked to begin at {at}")
        if not body:
            self.refuse(
                f"the master sends nothing from {at} on, and the own log ends at {self._max_offset}: the"
                " master has lost what it had sent, or has deleted it by age. Make this broker the"
                " master, or empty its directory to follow that one"
            )
            return offset, body
        own = self._tail[at - self._tail_stop + len(self._tail) :][: len(body)]
        if not body.startswith(own):
            self.refuse(
                f"the master has another record at {self._tail_stop - len(self._tail)} than the own log,"
                f" which ends at {self._max_offset}: it has lost messages that it had sent. Make this"
                " broker the master, or empty its directory to follow that one"
            )
            return offset, body
        held = min(len(body), self._max_offset - at)
        self._compared += held
        return offset + held, body[held:]

    def done(self, written: int, flushed: int, now_ms: float) -> None:
        offset = flushed if self._reports_flushed else written
        if offset > self._reported:
            self._reported = offset
            self._say_something(now_ms)

    def _say_something(self, now_ms: float) -> None:
        self._spoke_ms = now_ms
        self.out.append(_OFFSET.pack(self._reported))
