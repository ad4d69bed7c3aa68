"""A client's connection: gRPC over h2, as far as etcd's calls need it."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
from google.protobuf.message import Message

from quorumlog.kv.etcd.errors import Code, RpcError
from quorumlog.kv.etcd.grpc_port import PACKAGE


class Lost(Exception):
    """The connection or the call has ended, and nobody knows what became of the request."""


class GrpcConnection(asyncio.BufferedProtocol):
    member_id = ""
    """To whom it leads."""
    term = revision = 0
    """The newest that it was told."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._http = h2.connection.H2Connection(config)
        self._buffer = bytearray(1 << 16)
        self._streams: dict[int, GrpcStream] = {}
        self._transport: asyncio.Transport
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._http.initiate_connection()
        self.flush()

    def get_buffer(self, sizehint: int) -> Any:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        events: list[Any] = self._http.receive_data(bytes(self._buffer[:nbytes]))
        for event in events:
            stream = self._streams.get(getattr(event, "stream_id", 0) or 0)
            if isinstance(event, h2.events.DataReceived):
                self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if stream is not None:
                    stream.received(event.data)
            elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                if stream is not None:
                    headers: Any = event.headers
                    stream.headers |= dict(headers)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                if stream is not None:
                    stream.ended()
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.close()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for stream in list(self._streams.values()):
            stream.ended()

    def flush(self) -> None:
        data = self._http.data_to_send()
        if data and not self.is_lost:
            self._transport.write(data)

    def close(self) -> None:
        if not self.is_lost:
            self._transport.close()
            self.connection_lost(None)

    def begin(self, name: str) -> GrpcStream:
        """A call, by its name. Raises Lost."""
        if self.is_lost:
            raise Lost
        number = self._http.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PACKAGE + name),
            (":authority", "etcd"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        self._http.send_headers(number, headers)
        stream = self._streams[number] = GrpcStream(self, self._http, number)
        return stream

    def forget(self, number: int) -> bool:
        """False: the call has ended before."""
        return self._streams.pop(number, None) is not None


class GrpcStream:
    def __init__(
        self, connection: GrpcConnection, http: h2.connection.H2Connection, number: int
    ) -> None:
        self._connection = connection
        self._http = http
        self._number = number
        self._body = bytearray()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.headers: dict[str, str] = {}

    def send(self, message: Message, *, is_last: bool = False) -> None:
        if not self._connection.is_lost:
            data = message.SerializeToString()
            framed = b"\0" + len(data).to_bytes(4, "big") + data
            self._http.send_data(self._number, framed, end_stream=is_last)
            self._connection.flush()

    def received(self, data: bytes) -> None:
        self._body += data
        while len(self._body) >= 5 and len(self._body) >= (
            stop := 5 + int.from_bytes(self._body[1:5], "big")
        ):
            self._messages.put_nowait(bytes(self._body[5:stop]))
            del self._body[:stop]

    def ended(self) -> None:
        self._messages.put_nowait(None)
        self._connection.forget(self._number)

    async def next(self) -> bytes:
        """The next message. Raises Lost, RpcError."""
        message = await self._messages.get()
        if message is None:
            status = int(self.headers.get("grpc-status", "0"))
            if status:
                raise RpcError(Code(status), unquote(self.headers["grpc-message"]))
            raise Lost
        return message

    def reset(self) -> None:
        """Give the call up."""
        if self._connection.forget(self._number) and not self._connection.is_lost:
            self._http.reset_stream(self._number)
            self._connection.flush()
