"""One frame carries one message of one group, and the batch that belongs to it.

    offset  bytes  field           (little-endian)
         0      4  magic           "QLG" and the version of this layout, 1
         4      4  control_crc     CRC-32 of everything from offset 8 to the end of control
         8      4  batch_crc       CRC-32 of sizes and entries; 0 without a batch
        12      4  frame_bytes     of the whole frame, this header included
        16      4  control_bytes
        20      4  count           entries in the batch
        24      c  control         MessagePack of (group, message)
    24 + c   4 count  sizes        bytes of each entry, header included
       ...      n  batch           entries as they lie on disk (quorumlog.batch)

Sans-IO. A batch is never copied on the way out; on the way in it is received into a buffer of its own
(large frames) or copied once (small ones). Lengths are checked before anything is allocated for them.
Bytes that no correct counterpart sends raise `ProtocolViolation`, and nothing else; the connection
closes then.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from isal.isal_zlib import crc32

from quorumlog.batch import EntryBatch
from quorumlog.config import FRAME_LIMIT_BYTES, MIB
from quorumlog.consensus.messages import (
    NOBODY,
    AnyPeerMessage,
    PeerMessage,
    PushEntryRequest,
    RangeResponse,
)
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.hello import ChallengeResponse, Greeting, Hello
from quorumlog.net.strangers import OtherSoftware
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import AnyClientMessage, AnyClientRequest
from quorumlog.wire.field_names import UNREADABLE, named_reason

AnyFrameMessage = AnyPeerMessage | Greeting | ErrorResponse | AnyClientMessage
WITH_BATCH = (PushEntryRequest, RangeResponse)

MAGIC = b"QLG\x01"
FRAME_HEADER_BYTES = 24
DEFAULT_MAX_FRAME_BYTES = FRAME_LIMIT_BYTES
FROM_CLIENT_BYTES = 2 * MIB
"""Of a log client's request without entries: the largest is a query to a state machine."""
RECEIVE_BUFFER_BYTES = 256 * 1024
"""Receive buffer of a busy connection."""
FIRST_BUFFER_BYTES = 4 * 1024
"""And before it has sent so much at once; it grows by fours."""
LARGE_FRAME_BYTES = 64 * 1024
"""A frame above this that has not arrived whole is received into a buffer of its own."""

_HEADER = struct.Struct("<4sIIIII")
_TAIL = struct.Struct("<IIII")
_SIZE = struct.Struct("<I")
_CHECKED_FROM = 8
_ANNOUNCEMENT_BYTES = 4
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[tuple[str, AnyFrameMessage]] = msgspec.msgpack.Decoder(
    tuple[str, AnyFrameMessage]
)
_OF_CLIENT: Any = msgspec.msgpack.Decoder(tuple[str, Hello | ChallengeResponse | AnyClientRequest])
assert _HEADER.size == FRAME_HEADER_BYTES
assert _TAIL.size == FRAME_HEADER_BYTES - _CHECKED_FROM


class Frame(NamedTuple):
    group: str
    message: AnyFrameMessage
    batch: EntryBatch | None
    size_bytes: int = 0
    """As it came."""


def encode_frame(
    group: str, message: AnyFrameMessage | ClientMessage, batch: EntryBatch | None = None
) -> list[Buffer]:
    """Buffers to write one after the other; the second, if any, is `batch.buffer` itself, or a control
    part that is too large to be copied. A peer message
    goes without its `sender`, and its own `batch` after it."""
    if isinstance(message, PeerMessage):
        if isinstance(message, WITH_BATCH) and message.batch is not None:
            assert batch is None or batch is message.batch, "a message has one batch"
            batch = message.batch
            message = msgspec.structs.replace(message, sender=NOBODY, batch=None)
        elif message.sender != NOBODY:
            message = msgspec.structs.replace(message, sender=NOBODY)
    control = _ENCODER.encode((group, message))
    if batch is None or batch.count == 0:
        control_bytes = len(control)
        tail = _TAIL.pack(0, FRAME_HEADER_BYTES + control_bytes, control_bytes, 0)
        if control_bytes > LARGE_FRAME_BYTES:
            return [MAGIC + crc32(control, crc32(tail)).to_bytes(4, "little") + tail, control]
        tail += control
        return [MAGIC + crc32(tail).to_bytes(4, "little") + tail]
    buffer = batch.buffer
    sizes = _SIZE.pack(len(buffer)) if batch.count == 1 else batch.sizes.astype("<u4").tobytes()
    tail = (
        _TAIL.pack(
            crc32(buffer, crc32(sizes)),
            FRAME_HEADER_BYTES + len(control) + len(sizes) + len(buffer),
            len(control),
            batch.count,
        )
        + control
    )
    return [MAGIC + crc32(tail).to_bytes(4, "little") + tail + sizes, buffer]


def frame_bytes_of(buffers: list[Buffer]) -> int:
    return sum(map(len, buffers))


class FrameDecoder:
    """Bytes in, frames out, for one connection. `get_buffer` and `buffer_updated` are those of
    `asyncio.BufferedProtocol`; a blocking reader uses them around `recv_into`."""

    __slots__ = (
        "_control",
        "_control_limit_bytes",
        "_end",
        "_greeting_bytes",
        "_large",
        "_large_end",
        "_limit_bytes",
        "_max_frame_bytes",
        "_other_greeting_bytes",
        "_receive",
        "_start",
        "_violation",
        "unfinished_bytes",
    )

    def __init__(
        self,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        control: Any = _DECODER,
        greeting_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        control_limit_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        other_greeting_bytes: int = 0,
    ) -> None:
        """`control`: decodes (group, message) for this connection's messages. `greeting_bytes`: the most
        that the first frame may have. `control_limit_bytes`: the most that a control part may have.
        `other_greeting_bytes`: a peer that does not begin with a frame is recognized as other software
        once it has sent as many bytes as its first four announce, big-endian; if that is more than this,
        at once."""
        assert max_frame_bytes >= FRAME_HEADER_BYTES, max_frame_bytes
        self._max_frame_bytes = max_frame_bytes
        self._limit_bytes = self._greeting_bytes = min(greeting_bytes, max_frame_bytes)
        self._control = control
        self._control_limit_bytes = control_limit_bytes
        self._other_greeting_bytes = other_greeting_bytes
        self._receive = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._start = 0
        """First byte not yet handed out as part of a frame; `_start <= _end`."""
        self._end = 0
        self._large: memoryview | None = None
        """The buffer of the one large frame on its way; while it is set, `_receive` is empty."""
        self._large_end = 0
        self._violation = ""
        self.unfinished_bytes = 0
        """Of the frame that has begun."""

    @property
    def is_between_frames(self) -> bool:
        """True if the bytes so far end with a whole frame: a close here truncates nothing."""
        return self._large is None and self._start == self._end

    @property
    def missing_bytes(self) -> int:
        """Of the frame that has begun, as far as its header is there."""
        if self._large is not None:
            return len(self._large) - self._large_end
        begun = self._end - self._start
        if begun < FRAME_HEADER_BYTES:
            return FRAME_HEADER_BYTES - begun
        frame_bytes = int(_HEADER.unpack_from(self._receive, self._start)[3])
        return max(1, frame_bytes - begun)  # a greeting of other software has no such header

    def greets_again(self) -> None:
        """The next frame is still one of the greeting."""
        self._limit_bytes = self._greeting_bytes

    def hears_client(self) -> None:
        """The next frames are decoded only if a client of the log sends such messages: answers may have
        millions of rows, which take seconds to decode."""
        self._control = _OF_CLIENT
        self._control_limit_bytes = FROM_CLIENT_BYTES

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._large_end :]
        return self._receive[self._end :] if self._end else self._receive

    def buffer_updated(self, count: int) -> list[Frame]:
        """`count` bytes were put into `get_buffer()`; returns every frame that is now whole."""
        if self._violation:
            raise ProtocolViolation(self._violation)
        try:
            if self._large is not None:
                frames = self._large_updated(count)
            else:
                self._end += count
                assert self._end <= len(self._receive), (self._end, len(self._receive))
                frames = self._take_frames()
            self.unfinished_bytes = self._end - self._start if self._large is None else self._large_end
            return frames
        except ProtocolViolation as violation:
            self._violation = str(violation)
            raise

    def receive_data(self, data: Buffer) -> list[Frame]:
        """The same for bytes that lie elsewhere."""
        frames: list[Frame] = []
        rest = memoryview(data).cast("B")
        while rest:
            into = self.get_buffer()
            count = min(len(into), len(rest))
            into[:count] = rest[:count]
            frames += self.buffer_updated(count)
            rest = rest[count:]
        return frames

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        receive, start, end = self._receive, self._start, self._end
        capacity = len(receive)
        was_full = end == capacity
        begun_bytes = 0
        """Of the frame at the end, as far as it is known."""
        while end - start >= FRAME_HEADER_BYTES:
            header = _HEADER.unpack_from(receive, start)
            frame_bytes, control_bytes, count = header[3:]
            if header[0] != MAGIC:
                self._check_other(bytes(receive[start:end]))
                break
            least = FRAME_HEADER_BYTES + control_bytes + count * (4 + HEADER_BYTES)
            if (
                frame_bytes < least
                or frame_bytes > self._limit_bytes
                or control_bytes > self._control_limit_bytes
                or (count == 0 and frame_bytes != least)
            ):
                self._refuse_lengths(frame_bytes, control_bytes, count)
            if end - start < frame_bytes:
                if frame_bytes > LARGE_FRAME_BYTES:
                    self._begin_large(frame_bytes)
                    return frames
                begun_bytes = frame_bytes
                break
            stop = start + frame_bytes
            frames.append(_decode(receive[start:stop], header, self._control, copy=True))
            self._limit_bytes = self._max_frame_bytes
            self._other_greeting_bytes = 0
            self._start = start = stop
        else:
            # Others may wait for more from here before they say more.
            if end - start >= len(MAGIC) and receive[start : start + 4] != MAGIC:
                self._check_other(bytes(receive[start:end]))
        if start == end and not was_full:
            self._start = self._end = 0
            return frames
        if was_full or begun_bytes > capacity:
            capacity = min(max(4 * capacity, begun_bytes), RECEIVE_BUFFER_BYTES)
        if capacity > len(receive):
            self._receive = memoryview(bytearray(capacity))
            self._receive[: end - start] = receive[start:end]
            self._start, self._end = 0, end - start
        elif start == end:
            self._start = self._end = 0
        elif capacity - end < max(begun_bytes, capacity // 4):
            # What is left is the beginning of one small frame: after this move the whole of it fits.
            receive[: end - start] = receive[start:end]
            self._start, self._end = 0, end - start
        return frames

    def _check_other(self, received: bytes) -> None:
        """No frame begins like that. Raises OtherSoftware, but where more of it is to be waited for."""
        announced_bytes = int.from_bytes(received[:_ANNOUNCEMENT_BYTES], "big")
        if not len(received) - _ANNOUNCEMENT_BYTES < announced_bytes <= self._other_greeting_bytes:
            raise OtherSoftware(received)

    def _refuse_lengths(self, frame_bytes: int, control_bytes: int, count: int) -> NoReturn:
        if frame_bytes > self._limit_bytes:
            raise ProtocolViolation(
                f"a frame of {frame_bytes} bytes is above the limit of {self._limit_bytes} bytes"
            )
        least = FRAME_HEADER_BYTES + control_bytes + count * (4 + HEADER_BYTES)
        if frame_bytes < least or (count == 0 and frame_bytes != least):
            raise ProtocolViolation(
                f"a frame of {frame_bytes} bytes cannot hold {control_bytes} bytes of control and"
                f" {count} entries"
            )
        raise ProtocolViolation(
            f"a control part of {control_bytes} bytes is above the limit of"
            f" {self._control_limit_bytes} bytes"
        )

    def _begin_large(self, frame_bytes: int) -> None:
        # numpy because it leaves the memory as it is; a bytearray would be zeroed first.
        self._large = np.empty(frame_bytes, np.uint8).data
        self._large_end = self._end - self._start
        self._large[: self._large_end] = self._receive[self._start : self._end]
        self._start = self._end = 0

    def _large_updated(self, count: int) -> list[Frame]:
        frame = self._large
        assert frame is not None
        self._large_end += count
        assert self._large_end <= len(frame), (self._large_end, len(frame))
        if self._large_end < len(frame):
            return []
        self._large = None
        return [_decode(frame, _HEADER.unpack_from(frame), self._control, copy=False)]


def _decode(
    frame: memoryview, header: tuple[bytes, int, int, int, int, int], control: Any, *, copy: bool
) -> Frame:
    """One whole frame whose lengths are checked. `copy`: `frame` is memory that is used again."""
    _, control_crc, batch_crc, frame_bytes, control_bytes, count = header
    assert frame_bytes == len(frame), (frame_bytes, len(frame))
    control_end = FRAME_HEADER_BYTES + control_bytes
    if crc32(frame[_CHECKED_FROM:control_end]) != control_crc:
        raise ProtocolViolation("control_crc of a frame does not match")
    try:
        group, message = control.decode(frame[FRAME_HEADER_BYTES:control_end])
    except UNREADABLE as error:
        reason = named_reason(error, frame[FRAME_HEADER_BYTES:control_end], control.type)
        raise ProtocolViolation(f"a frame holds no message: {reason}") from None
    batch = None
    if count:
        if crc32(frame[control_end:]) != batch_crc:
            raise ProtocolViolation("batch_crc of a frame does not match")
        buffer = frame[control_end + 4 * count :]
        if count == 1:
            (size,) = _SIZE.unpack_from(frame, control_end)
            if size != len(buffer):
                raise ProtocolViolation(
                    f"an entry of {size} bytes by its size is {len(buffer)} bytes long"
                )
            batch = EntryBatch(bytearray(buffer) if copy else buffer, None)
        else:
            sizes = np.frombuffer(frame, "<u4", count, control_end).astype(np.int64)
            batch = EntryBatch(bytearray(buffer) if copy else buffer, sizes)
    elif batch_crc:
        raise ProtocolViolation("a frame without a batch has a batch_crc")
    if isinstance(message, PeerMessage):
        if message.sender != NOBODY:
            raise ProtocolViolation("a peer message names its sender itself")
        if isinstance(message, WITH_BATCH):
            if message.batch is not None:
                raise ProtocolViolation("a message carries a batch inside its control part")
            if batch is not None:
                message = msgspec.structs.replace(message, batch=batch)
    return tuple.__new__(Frame, (group, message, batch, frame_bytes))
