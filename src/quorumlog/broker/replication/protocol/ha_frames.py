"""Frames of the dialect `quorumlog` between a master and a slave.

    bytes  field (big-endian)
        4  size of what follows
        1  kind
           HELLO 1, WELCOME 2, START 3, STATE 4, REFUSE 5: MessagePack of the classes below
           DATA 6       epoch 8, run 4, offset 8, confirm offset 8, CRC-32 of the body 4, body: bytes
                        of the commit log from that offset on, never over the end of a file
           HEARTBEAT 7  epoch 8, run 4, end of the master's log 8, confirm offset 8
           REPORT 8     epoch 8, written 8, flushed 8

The slave connects and says HELLO; WELCOME and START agree on where it goes on; from then on DATA and
HEARTBEAT go one way, REPORT the other. An epoch is its number: who leads it is said in the WELCOME.
Protocol 1 had no lists in its histories; its HELLO is read, to be refused in its own words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32

from quorumlog.broker.epochs.epoch_history import Epoch, Peer, Run
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.wire.client_message import Int, Text

HA_PROTOCOL = 2
MAGIC = "quorumlog-ha"
MOST_BODY_BYTES = 8 << 20
_MOST_FRAME_BYTES = MOST_BODY_BYTES + 64
_MOST_HELLO_BYTES = 4 << 20
"""Histories are short; topics may be many."""

_HEAD = struct.Struct(">IB")
_DATA = struct.Struct(">qiqqI")
_HEARTBEAT = struct.Struct(">qiqq")
_REPORT = struct.Struct(">qqq")
_DATA_KIND, _HEARTBEAT_KIND, _REPORT_KIND = 6, 7, 8


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    magic: Text = MAGIC
    protocol: Int = HA_PROTOCOL
    slave: Peer
    promised_epoch: Int
    max_offset: Int
    file_bytes: Int
    is_sync_flush: bool
    history: list[tuple[Int, Int, Int]] = []
    """Of protocol 1, whose masters read no HELLO without it."""
    promised_leader: Text = ""
    runs: list[Run] = []
    release: Text = ""
    """An earlier one does not say it. So in `Welcome`."""

    @property
    def promised(self) -> Epoch:
        return Epoch(self.promised_epoch, self.promised_leader)


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    master: Peer
    epoch: Int
    leader: Text
    run: Int
    runs: list[Run]
    min_offset: Int
    max_offset: Int
    release: Text = ""
    queues: dict[Text, dict[Int, Int]] | None = None
    """To one that begins at `min_offset`: of each queue of a topic the number of its first message from
    there on, or of its next one. None: it goes on, or a master of an older release does not say it."""

    alive_from: dict[Text, dict[Int, Int]] = {}
    """As `ConsumeQueues.alive_from`, by topic."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    offset: Int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a slave stores beside the log."""

    topics: dict[Text, Int]
    is_run_confirmed: bool


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    message: Text
    promised_epoch: Int = 0
    promised_leader: Text = ""
    is_for_now: bool = False
    """It is of use to try again soon: the broker that is asked may be about to lead."""


class Data(NamedTuple):
    epoch: int
    run: int
    offset: int
    confirm_offset: int
    body: bytes


class Heartbeat(NamedTuple):
    epoch: int
    run: int
    max_offset: int
    confirm_offset: int


class Report(NamedTuple):
    epoch: int
    written_offset: int
    flushed_offset: int


Control = Hello | Welcome | Start | State | Refuse
HaFrame = Control | Data | Heartbeat | Report

_KIND_OF: dict[type[Control], int] = {Hello: 1, Welcome: 2, Start: 3, State: 4, Refuse: 5}
_DECODERS = {kind: msgspec.msgpack.Decoder(cls) for cls, kind in _KIND_OF.items()}


def encode_control(message: Control) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return _HEAD.pack(1 + len(payload), _KIND_OF[type(message)]) + payload


def encode_data(epoch: int, run: int, offset: int, confirm_offset: int, body: Buffer) -> list[Buffer]:
    size = len(memoryview(body))
    head = _HEAD.pack(1 + _DATA.size + size, _DATA_KIND)
    return [head + _DATA.pack(epoch, run, offset, confirm_offset, crc32(body)), body]


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return _HEAD.pack(1 + _HEARTBEAT.size, _HEARTBEAT_KIND) + _HEARTBEAT.pack(*heartbeat)


def encode_report(report: Report) -> bytes:
    return _HEAD.pack(1 + _REPORT.size, _REPORT_KIND) + _REPORT.pack(*report)


class HaDecoder:
    """Bytes as they come; frames as they are whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_greeted = False

    def feed(self, data: Buffer) -> Iterator[HaFrame]:
        """Raises ProtocolViolation, after which nothing more may be fed."""
        self._buffer += data
        at, buffer = 0, self._buffer
        try:
            while len(buffer) - at >= _HEAD.size:
                size, kind = _HEAD.unpack_from(buffer, at)
                most = _MOST_FRAME_BYTES if self._is_greeted else _MOST_HELLO_BYTES
                if not 1 <= size <= most or not 1 <= kind <= _REPORT_KIND:
                    raise ProtocolViolation(
                        "these are no frames of the HA dialect quorumlog; a Java broker needs"
                        " --ha-dialect rocketmq"
                    )
                stop = at + 4 + size
                if len(buffer) < stop:
                    return
                with memoryview(buffer) as view:
                    payload = bytes(view[at + _HEAD.size : stop])
                at = stop
                self._is_greeted = True
                yield _decoded(kind, payload)
        finally:
            del buffer[:at]


def _decoded(kind: int, payload: bytes) -> HaFrame:
    try:
        if kind == _DATA_KIND:
            epoch, run, offset, confirm, crc = _DATA.unpack_from(payload)
            body = payload[_DATA.size :]
            if crc32(body) != crc:
                raise ProtocolViolation(f"the bytes of {offset} on were changed on the way")
            return Data(epoch, run, offset, confirm, body)
        if kind == _HEARTBEAT_KIND:
            return Heartbeat._make(_HEARTBEAT.unpack(payload))
        if kind == _REPORT_KIND:
            return Report._make(_REPORT.unpack(payload))
        decoded: Control = _DECODERS[kind].decode(payload)
        return decoded
    except (struct.error, msgspec.MsgspecError) as error:
        raise ProtocolViolation(f"a frame of kind {kind} cannot be read: {error}") from None
