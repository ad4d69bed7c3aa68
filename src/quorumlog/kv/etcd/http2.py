"""Http2: the server's side of a connection of HTTP/2 (RFC 9113), as far as gRPC uses it. Sans-IO: bytes
in, events out, and bytes to send. Headers are packed and unpacked by `hpack`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import hpack

from quorumlog.errors import ProtocolViolation

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
"""Of a frame."""
MAX_FRAME_BYTES = 1 << 14
WINDOW_BYTES = 1 << 20
"""That a client may send ahead, on a stream and on the connection."""
MOST_STREAMS = 1_000
"""Of a connection, at a time."""
MOST_HEADERS_BYTES = 16 << 10
"""Of one request, packed and unpacked."""
MOST_CONTINUATIONS = 64
MOST_KNOWN = 64
"""Packed headers whose meaning is kept."""
_MOST_WINDOW = 2**31 - 1

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = range(6)
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(6, 10)
_END_STREAM = _ACK = 1
_END_HEADERS, _PADDED, _HAS_PRIORITY = 4, 8, 0x20
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = 3, 4, 5, 6
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 3
FRAME_SIZE_ERROR, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 9, 11


class Began(NamedTuple):
    stream: int
    headers: dict[bytes, bytes]


class Data(NamedTuple):
    stream: int
    data: bytes


class Ended(NamedTuple):
    """The client says no more on it."""

    stream: int


class Reset(NamedTuple):
    """The client has ended it before it was answered."""

    stream: int


class WindowOpened(NamedTuple):
    stream: int
    """0: of all."""


class Leaves(NamedTuple):
    """The client begins no more streams."""


Event = Began | Data | Ended | Reset | WindowOpened | Leaves


class Http2Violation(ProtocolViolation):
    def __init__(self, words: str, last_words: bytes) -> None:
        """`last_words`: what is said before the connection is closed."""
        super().__init__(f"no HTTP/2: {words}")
        self.last_words = last_words


class _Stream:
    __slots__ = ("has_ended", "unreturned", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        """That may be sent."""
        self.unreturned = 0
        """Bytes that came, and were not returned to its client's window."""
        self.has_ended = False
        """The client says no more."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return b"%b%c%c%b%b" % (
        len(payload).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), payload
    )  # fmt: skip


def goaway(last_stream: int, code: int, words: str) -> bytes:
    said = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + words.encode()[:1000]
    return frame(_GOAWAY, 0, 0, said)


def packed(headers: Iterable[tuple[str, str]]) -> bytes:
    """They change nothing that the other side remembers, so that the same bytes do each time."""
    fresh = hpack.Encoder()
    return fresh.encode([hpack.NeverIndexedHeaderTuple(name, value) for name, value in headers])


class Http2:
    def __init__(self) -> None:
        self._received = bytearray()
        self._has_preface = self._has_settings = False
        self._decoder = hpack.Decoder(max_header_list_size=MOST_HEADERS_BYTES)
        self._known: dict[bytes, dict[bytes, bytes]] = {}
        """By packed headers that only refer to earlier ones: what they are while nothing is added."""
        self._headers: tuple[int, int, bytearray, int] | None = None
        """(stream, flags, packed so far, frames) of a request whose headers have not come whole."""
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        """Stream that began last."""
        self._window = self._first_window = 65_535
        """That may be sent on the connection, and on a stream that begins."""
        self._max_frame_bytes = MAX_FRAME_BYTES
        self._unreturned = 0
        self._out: list[bytes] = []

    # ---------------------------------------------------------------- what goes

    def take_out(self) -> list[bytes]:
        """What is to be sent, once."""
        out, self._out = self._out, []
        return out

    def room(self, stream: int) -> int:
        """Bytes of data that may be sent in one frame."""
        known = self._streams.get(stream)
        return 0 if known is None else min(self._window, known.window, self._max_frame_bytes)

    def send_headers(self, stream: int, block: bytes) -> None:
        """`block`: packed, and at most a frame. Nothing happens on a stream that has ended."""
        if stream in self._streams:
            self._out.append(frame(_HEADERS, _END_HEADERS, stream, block))

    def send_data(self, stream: int, data: bytes | memoryview) -> None:
        """At most what there is `room` for."""
        known = self._streams.get(stream)
        if known is not None:
            known.window -= len(data)
            self._window -= len(data)
            self._out.append(frame(_DATA, 0, stream, bytes(data)))

    def end(self, stream: int, block: bytes) -> None:
        """With these headers; the client need not say more."""
        known = self._streams.pop(stream, None)
        if known is not None:
            self._out.append(frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, block))
            if not known.has_ended:
                self._out.append(frame(_RST_STREAM, 0, stream, NO_ERROR.to_bytes(4, "big")))

    # ---------------------------------------------------------------- what comes

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Raises Http2Violation."""
        received = self._received
        received += data
        if not self._has_preface:
            if not PREFACE.startswith(received[: len(PREFACE)]):
                self._violated(PROTOCOL_ERROR, "it begins with no preface")
            if len(received) < len(PREFACE):
                return []
            self._has_preface = True
            del received[: len(PREFACE)]
            self._greet()
        events: list[Event] = []
        start, size = 0, len(received)
        while size - start >= HEADER_BYTES:
            length = int.from_bytes(received[start : start + 3], "big")
            if length > MAX_FRAME_BYTES:
                self._violated(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            stop = start + HEADER_BYTES + length
            if stop > size:
                break
            kind, flags = received[start + 3], received[start + 4]
            stream = int.from_bytes(received[start + 5 : start + 9], "big") & 0x7FFFFFFF
            payload = bytes(received[start + HEADER_BYTES : stop])
            start = stop
            self._frame(events, kind, flags, stream, payload)
        del received[:start]
        return events

    def _greet(self) -> None:
        settings = (
            (_MAX_CONCURRENT_STREAMS, MOST_STREAMS),
            (_INITIAL_WINDOW_SIZE, WINDOW_BYTES),
            (_MAX_HEADER_LIST_SIZE, MOST_HEADERS_BYTES),
        )
        said = b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in settings)
        self._out.append(frame(_SETTINGS, 0, 0, said))
        self._return(0, WINDOW_BYTES - 65_535)

    def _return(self, stream: int, size: int) -> None:
        """So much more may be sent by the client."""
        self._out.append(frame(_WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big")))

    def _violated(self, code: int, words: str) -> None:
        """Raises Http2Violation."""
        self._out.append(goaway(self._last, code, words))
        raise Http2Violation(words, b"".join(self.take_out()))

    def _check(self, holds: bool, words: str, code: int = PROTOCOL_ERROR) -> None:
        """Raises Http2Violation."""
        if not holds:
            self._violated(code, words)

    def _frame(self, events: list[Event], kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Raises Http2Violation."""
        if self._headers is not None:
            self._check(
                kind == _CONTINUATION and stream == self._headers[0],
                "another frame between the parts of headers",
            )
        elif not self._has_settings:
            self._check(kind == _SETTINGS and not flags & _ACK, "no settings come first")
            self._has_settings = True
        if kind == _DATA:
            self._came(events, flags, stream, payload)
        elif kind == _HEADERS:
            if flags & _PADDED:
                payload = self._unpadded(payload)
            if flags & _HAS_PRIORITY:
                self._check(len(payload) >= 5, "a priority is cut off")
                payload = payload[5:]
            self._gather(events, stream, flags, bytearray(payload), 0)
        elif kind == _CONTINUATION:
            self._check(self._headers is not None, "a part of no headers")
            assert self._headers is not None
            _, first_flags, block, frames = self._headers
            block += payload
            self._gather(events, stream, first_flags | (flags & _END_HEADERS), block, frames + 1)
        elif kind == _WINDOW_UPDATE:
            self._opened(events, stream, payload)
        elif kind == _RST_STREAM:
            self._check(0 < stream <= self._last and len(payload) == 4, "a reset of no stream")
            if self._streams.pop(stream, None) is not None:
                events.append(Reset(stream))
        elif kind == _SETTINGS:
            self._set(events, flags, stream, payload)
        elif kind == _PING:
            self._check(stream == 0 and len(payload) == 8, "a ping that is none", FRAME_SIZE_ERROR)
            if not flags & _ACK:
                self._out.append(frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            events.append(Leaves())
        else:
            self._check(kind != _PUSH_PROMISE, "a client promises nothing")
            # Priorities, and kinds that are not known, change nothing.

    def _unpadded(self, payload: bytes) -> bytes:
        self._check(bool(payload) and payload[0] < len(payload), "more padding than there is")
        return payload[1 : len(payload) - payload[0]]

    def _came(self, events: list[Event], flags: int, stream: int, payload: bytes) -> None:
        self._check(0 < stream <= self._last, "data of no stream")
        known = self._streams.get(stream)
        self._unreturned += len(payload)
        if self._unreturned >= WINDOW_BYTES // 2:
            self._return(0, self._unreturned)
            self._unreturned = 0
        if known is None:
            return  # it was answered already
        self._check(not known.has_ended, "data behind the end of a stream")
        known.unreturned += len(payload)
        if flags & _PADDED:
            payload = self._unpadded(payload)
        if payload:
            events.append(Data(stream, payload))
        if flags & _END_STREAM:
            known.has_ended = True
            events.append(Ended(stream))
        elif known.unreturned >= WINDOW_BYTES // 2:
            self._return(stream, known.unreturned)
            known.unreturned = 0

    def _gather(
        self, events: list[Event], stream: int, flags: int, block: bytearray, frames: int
    ) -> None:
        """Headers, once they have come whole."""
        is_small = len(block) <= MOST_HEADERS_BYTES and frames <= MOST_CONTINUATIONS
        self._check(is_small, "headers without end", ENHANCE_YOUR_CALM)
        if not flags & _END_HEADERS:
            self._headers = stream, flags, block, frames
            return
        self._headers = None
        headers = self._unpacked(bytes(block))
        known = self._streams.get(stream)
        if known is not None:  # trailers
            self._check(bool(flags & _END_STREAM) and not known.has_ended, "headers within a stream")
            known.has_ended = True
            events.append(Ended(stream))
        elif stream > self._last:
            self._check(stream % 2 == 1, "a stream of a server")
            self._last = stream
            self._check(len(self._streams) < MOST_STREAMS, "too many streams", ENHANCE_YOUR_CALM)
            self._streams[stream] = known = _Stream(self._first_window)
            events.append(Began(stream, headers))
            if flags & _END_STREAM:
                known.has_ended = True
                events.append(Ended(stream))

    def _unpacked(self, block: bytes) -> dict[bytes, bytes]:
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            headers = dict(self._decoder.decode(block, raw=True))
        except hpack.HPACKError as error:
            self._violated(COMPRESSION_ERROR, f"headers that cannot be read: {type(error).__name__}")
            raise AssertionError from None
        # Each byte refers to one header of the table: the next one that is added moves all.
        if len(self._known) >= MOST_KNOWN or not all(0x80 < each < 0xFF for each in block):
            self._known.clear()
        else:
            self._known[block] = headers
        return headers

    def _opened(self, events: list[Event], stream: int, payload: bytes) -> None:
        size = int.from_bytes(payload, "big") & 0x7FFFFFFF
        self._check(len(payload) == 4 and size > 0 and stream <= self._last, "a window opens by nothing")
        known = self._streams.get(stream)
        if not stream:
            self._window += size
            self._check(self._window <= _MOST_WINDOW, "a window is too large", FLOW_CONTROL_ERROR)
        elif known is not None:
            known.window += size
            self._check(known.window <= _MOST_WINDOW, "a window is too large", FLOW_CONTROL_ERROR)
        events.append(WindowOpened(stream))

    def _set(self, events: list[Event], flags: int, stream: int, payload: bytes) -> None:
        self._check(stream == 0 and len(payload) % 6 == 0, "settings that are none", FRAME_SIZE_ERROR)
        if flags & _ACK:
            return
        for place in range(0, len(payload), 6):
            name = int.from_bytes(payload[place : place + 2], "big")
            value = int.from_bytes(payload[place + 2 : place + 6], "big")
            if name == _INITIAL_WINDOW_SIZE:
                self._check(value <= _MOST_WINDOW, "a window is too large", FLOW_CONTROL_ERROR)
                for each in self._streams.values():
                    each.window += value - self._first_window
                self._first_window = value
            elif name == _MAX_FRAME_SIZE:
                self._check(1 << 14 <= value < 1 << 24, "no size of frames")
                # Larger ones than these would only wait longer for each other.
                self._max_frame_bytes = min(value, 1 << 16)
        self._out.append(frame(_SETTINGS, _ACK, 0))
        events.append(WindowOpened(0))
