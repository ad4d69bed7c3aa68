"""HttpDecoder: what h11 makes of the bytes on one connection, in the place of frames."""

from __future__ import annotations

from typing import Any

import h11

from quorumlog.errors import ProtocolViolation
from quorumlog.net.frame import Frame

FIRST_BUFFER_BYTES, BUFFER_BYTES = 4 << 10, 64 << 10
MAX_AHEAD_BYTES = 64 << 10
"""Behind a request that is not answered yet."""


class HttpDecoder:
    """`Decoder` of a connection. The message of a frame is an event of h11."""

    missing_bytes = 1024
    unfinished_bytes = 0
    """Of the body of a request: whoever gathers it says so."""

    def __init__(self) -> None:
        self.http = h11.Connection(h11.SERVER)
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> list[Frame]:
        self.http.receive_data(bytes(self._buffer[:count]))
        if count == len(self._buffer) < BUFFER_BYTES:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        return self.events()

    def ended(self) -> list[Frame]:
        """Nothing more comes. Raises ProtocolViolation."""
        self.http.receive_data(b"")
        return self.events()

    def events(self) -> list[Frame]:
        """What has come, up to the end of a request. Raises ProtocolViolation."""
        found: list[Any] = []
        try:
            while (event := self.http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                found.append(event)
                if isinstance(event, h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError as error:
            raise ProtocolViolation(f"no request of HTTP: {error}") from None
        if event is h11.PAUSED and len(self.http.trailing_data[0]) > MAX_AHEAD_BYTES:
            raise ProtocolViolation(f"{MAX_AHEAD_BYTES} bytes behind a request that is not answered yet")
        return [Frame("", each, None) for each in found]

    def sent(self, *events: Any) -> list[Any]:
        """The bytes of what is answered."""
        return [data for event in events if (data := self.http.send(event))]
