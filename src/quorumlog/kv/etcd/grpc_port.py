"""EtcdPort: etcd's gRPC API on a port of a member, over `h2`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from google.protobuf.message import DecodeError, Message

from quorumlog.client_guard import contain
from quorumlog.errors import LedgerError, NotAuthenticated, ProtocolViolation
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.errors import Code, RpcError, error_of, etcd_error
from quorumlog.kv.etcd.handlers import AUTHENTICATE, KEEP_ALIVE, METHODS, WATCH, Handlers, Method
from quorumlog.kv.etcd.port import EtcdClient, EtcdEndpoint
from quorumlog.kv.etcd.watching import WatchStream
from quorumlog.kv.requests import MAX_REQUEST_BYTES, StatusAnswer
from quorumlog.net.connection import Connection, LastWords
from quorumlog.net.frame import Frame

log = logging.getLogger("quorumlog.kv")

FIRST_BUFFER_BYTES, BUFFER_BYTES = 4 << 10, 64 << 10
MAX_MESSAGE_BYTES = MAX_REQUEST_BYTES + (512 << 10)
"""Most bytes of a message; for a smaller one the store's error names the part that is too large."""
WINDOW_BYTES = 1 << 20
"""Flow-control windows of a client, on a stream and on a connection."""
MOST_STREAMS = 1_000
"""Most streams of a connection at a time."""
MOST_HEADER_BYTES = 16 << 10
STREAM_BYTES = 1 << 10
"""Memory of a stream in bytes, without its headers and messages."""
MOST_RESETS, RESETS_PER_S = 200, 100.0
"""Streams that a client may reset before they are answered: a burst, and a rate per second."""
MOST_WATCHES = 2_500
"""Most watches of a connection: a quarter of the default for all etcd clients of a member."""
MOST_WAITING_BYTES = 64 << 20
"""Most bytes of unanswered requests of all clients of a port."""
MOST_KEEP_ALIVES = 1_000
"""Most keep-alives of a stream that wait for earlier ones."""
SMALL_BYTES = 4096
"""Waiting bytes up to this size are not counted."""
FULL_BYTES = 1 << 20
"""Bytes held for a client that does not open its windows, before its watches and reads wait."""
PACKAGE = "/etcdserverpb."
_PREFACE = b"PRI * HTTP/2.0"
_NO_HTTP2 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"this port speaks gRPC; etcd's JSON gateway has a port of its own (--etcd-gateway)\n"
)
_PREFIX = 5
"""Prefix of a message: (compressed flag, length)."""
_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_OK = [(b"grpc-status", b"0")]
_UNSAFE = "".join(chr(each) for each in range(256) if not 0x20 <= each < 0x7F or each == 0x25)


class Http2Violation(ProtocolViolation):
    def __init__(self, words: str, goaway: bytes) -> None:
        """`goaway`: sent before the connection is closed."""
        super().__init__(words)
        self.goaway = goaway


class Http2Decoder:
    """`Decoder` of a connection. The message of a frame is an event of h2."""

    missing_bytes = 1024
    unfinished_bytes = 0
    """Bytes of partly received messages, reported by the session."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_outbound_headers=False,  # they are ours
            normalize_outbound_headers=False,
            validate_inbound_headers=False,  # few are looked at, and none goes on to anybody
            normalize_inbound_headers=False,
        )
        self.http = h2.connection.H2Connection(config)
        self.http.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            },
        )
        self.http.decoder.max_header_list_size = MOST_HEADER_BYTES
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._has_begun = False

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> list[Frame]:
        """Raises Http2Violation."""
        data = bytes(self._buffer[:count])
        if not self._has_begun:
            if not _PREFACE.startswith(data[: len(_PREFACE)]):
                raise Http2Violation("not gRPC: no preface of HTTP/2", _NO_HTTP2)
            self._has_begun = True
            self.http.initiate_connection()
            self.http.increment_flow_control_window(WINDOW_BYTES)
        try:
            events: list[Any] = self.http.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise Http2Violation(
                f"not gRPC: {type(error).__name__}: {error}", self.http.data_to_send()
            ) from None
        if count == len(self._buffer) < BUFFER_BYTES:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        for event in events:
            if type(event) is h2.events.RequestReceived:
                self.unfinished_bytes += _size_bytes_of(event.headers)
        return [Frame("", event, None) for event in events]


def _size_bytes_of(headers: Any) -> int:
    """Approximate memory in bytes of a call whose message has not arrived."""
    return STREAM_BYTES + sum(len(name) + len(value) for name, value in headers)


class EtcdPort(EtcdEndpoint):
    name = "etcd's gRPC port"
    second = "etcd_listen"
    is_http2 = True
    waiting_bytes = 0
    """Bytes of requests that are being answered."""

    def _decoder(self) -> Http2Decoder:
        return Http2Decoder()

    def _connect(self, connection: Connection) -> None:
        decoder = connection.decoder
        assert isinstance(decoder, Http2Decoder), decoder
        connection.session = _GrpcClient(self, connection, decoder)
        connection.is_in_pieces = True

    def _last_words(self) -> LastWords:
        return _last_words

    def _url_of(self, status: StatusAnswer) -> str:
        return status.etcd


def _last_words(problem: Exception) -> bytes | None:
    if isinstance(problem, Http2Violation):
        return problem.goaway
    http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    http.initiate_connection()
    words = str(problem).encode()[:1000]
    http.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, additional_data=words)
    return http.data_to_send()


class _GrpcClient:
    """The session of one connection, and the `EtcdCarrier` of its calls."""

    def __init__(self, port: EtcdPort, connection: Connection, decoder: Http2Decoder) -> None:
        self.port = port
        self._connection = connection
        self._decoder = decoder
        self.http = decoder.http
        self.client = EtcdClient(port, connection, self)
        self._streams: dict[int, _GrpcStream] = {}
        self._unfinished: dict[int, int] = {}
        """Bytes of headers and partly received messages by stream; what began first comes first."""
        self._number = 0
        self._queueing: dict[_GrpcStream, None] = {}
        """Streams that wait for the client's windows."""
        self._out_bytes = 0
        """Bytes of answers that wait for the client's windows."""
        self._held_bytes = 0
        """Bytes of changes that watches have not sent yet."""
        self._will_flush = False
        self._waiting: list[Callable[[], None]] = []
        self._watches = 0
        self._resets = float(MOST_RESETS)
        self._reset_s = time.monotonic()
        connection.at_end = self._at_end

    # ---------------------------------------------------------------- Session

    def frame(self, frame: Frame) -> None:
        event: Any = frame.message
        kind = type(event)
        if kind is h2.events.RequestReceived:
            self._begin(event)
        elif kind is h2.events.DataReceived:
            self._data(event)
        elif kind is h2.events.StreamEnded:
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.ended()
        elif kind is h2.events.WindowUpdated or kind is h2.events.RemoteSettingsChanged:
            self._windows_opened(getattr(event, "stream_id", 0))
        elif kind is h2.events.StreamReset:
            self._reset(event.stream_id)
        elif kind is h2.events.ConnectionTerminated and not self._streams:
            self.flush()
            self._connection.close()
            return
        self.will_flush()

    def _at_end(self) -> list[Frame]:
        """The client has ended its side, and so cannot open a window either: close the connection."""
        self._connection.close()
        return []

    def lost(self) -> None:
        for stream in list(self._streams.values()):
            stream.close()
        self._streams.clear()
        self.client.close()

    def writable(self) -> None:
        for each in list(self._queueing):
            each.pump()
        self._go_on()

    # ---------------------------------------------------------------- what comes

    def _begin(self, event: Any) -> None:
        headers = dict(event.headers)
        path = headers.get(b":path", b"").decode("latin-1")
        head_bytes = self._unfinished[event.stream_id] = _size_bytes_of(event.headers)
        stream = _GrpcStream(self, event.stream_id, path, head_bytes)
        self._streams[event.stream_id] = stream
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            stream.fail(RpcError(Code.INVALID_ARGUMENT, "this port speaks gRPC"))
            return
        if headers.get(b"hasleader") == b"true" and not self.port.knows_leader:
            stream.fail(etcd_error(Code.UNAVAILABLE, "no leader"))
            return
        token = headers.get(b"token") or headers.get(b"authorization") or b""
        stream.begin(token.decode("latin-1"))

    def _data(self, event: Any) -> None:
        self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self._streams.get(event.stream_id)
        if stream is not None and event.data:
            stream.received(event.data)

    def _reset(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        stream.close()
        now_s = time.monotonic()
        grown = (now_s - self._reset_s) * RESETS_PER_S
        self._resets, self._reset_s = min(self._resets + grown, float(MOST_RESETS)) - 1, now_s
        if self._resets < 0:
            self.violate(ProtocolViolation("too many streams are reset before they are answered"))

    def _windows_opened(self, number: int) -> None:
        stream = self._streams.get(number)
        for each in list(self._queueing) if stream is None else (stream,):
            each.pump()
        self._go_on()

    def queued(self, stream: _GrpcStream, size_bytes: int) -> None:
        """Add to the bytes of answers that wait."""
        if stream.waits:
            self._queueing[stream] = None
        else:
            self._queueing.pop(stream, None)
        self._out_bytes += size_bytes
        if self._out_bytes + self._held_bytes > SMALL_BYTES or self._connection.beside_bytes:
            self._connection.hold_beside(self._out_bytes + self._held_bytes)

    def gathered(self, number: int, size_bytes: int) -> None:
        """Add to the bytes of headers and partly received messages of a stream."""
        self._decoder.unfinished_bytes += size_bytes
        left_bytes = self._unfinished.get(number, 0) + size_bytes
        if left_bytes:
            self._unfinished[number] = left_bytes
            return
        is_first = number == next(iter(self._unfinished), None)
        self._unfinished.pop(number, None)
        if is_first:
            self._connection.note_unfinished(is_new=True)

    def ended(self, number: int) -> None:
        self._streams.pop(number, None)

    def may_watch(self, more: int) -> str:
        if more > 0 and self._watches >= MOST_WATCHES:
            return f"this connection has {self._watches} watches, its maximum"
        self._watches += more
        return ""

    # ---------------------------------------------------------------- EtcdCarrier

    def next_number(self) -> int:
        self._number += 1
        return self._number

    @property
    def peer_name(self) -> str:
        return self._connection.peer_name

    @property
    def meter(self) -> Any:
        return self._connection.meter

    @property
    def is_clogged(self) -> bool:
        """The client does not read sent bytes."""
        return self._connection.is_full

    @property
    def is_full(self) -> bool:
        return self.is_clogged or self._out_bytes >= FULL_BYTES

    @property
    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes + self._out_bytes + self._held_bytes

    def when_room(self, act: Callable[[], None]) -> None:
        if self.is_full:
            self._waiting.append(act)
        else:
            act()

    def _go_on(self) -> None:
        while self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, []
            for act in waiting:
                act()

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._connection.hold_beside(self._out_bytes + self._held_bytes)

    def abort(self) -> None:
        self._connection.abort()

    def violate(self, violation: ProtocolViolation) -> None:
        self.flush()
        self._connection.violate(violation)

    def will_flush(self) -> None:
        """Flush at the end of this turn, together with other output."""
        if not self._will_flush:
            self._will_flush = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._will_flush = False
        if data := self.http.data_to_send():
            self._connection.write([data])


class _GrpcStream:
    """One call."""

    def __init__(self, session: _GrpcClient, number: int, path: str, head_bytes: int) -> None:
        """`head_bytes`: size of its headers, which its session counts as partly received."""
        self._session = session
        self._number = number
        self._path = path
        self._head_bytes = head_bytes
        self._body = bytearray()
        self._token = ""
        self._method: Method | None = None
        self._call: _GrpcCall | None = None
        """The call, if it has a stream of messages."""
        self._message: bytes | None = None
        """The method, if the call is unary."""
        self._task: asyncio.Task[None] | None = None
        self._waiting_bytes = 0
        self._out: deque[memoryview] = deque()
        self._trailers: list[tuple[bytes, bytes]] | None = None
        """Trailers after the waiting bytes; None: the answer has more messages."""
        self._has_begun = self._is_closed = False

    # ---------------------------------------------------------------- what comes

    def begin(self, token: str) -> None:
        self._token = token
        name = self._path.removeprefix(PACKAGE) if self._path.startswith(PACKAGE) else ""
        if name in (WATCH, KEEP_ALIVE):
            try:
                handlers = self._session.client.handlers(token)
            except (RpcError, LedgerError) as refusal:
                self.fail(self.known(refusal))
                return
            self._call = (_WatchCall if name == WATCH else _KeepAliveCall)(self, self._session, handlers)
            self._token = token[:1]  # whether there was one, for its refusals
            self._has_head()
        elif name in METHODS:
            self._method = METHODS[name]
        elif name != AUTHENTICATE:
            service, _, method = self._path.strip("/").rpartition("/")
            self.fail(
                RpcError(Code.UNIMPLEMENTED, f"unknown method {method:.100} for service {service:.100}")
            )

    def received(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._body += data
        self._session.gathered(self._number, len(data))
        while len(self._body) >= _PREFIX and not self._is_closed:
            stop = _PREFIX + int.from_bytes(self._body[1:_PREFIX], "big")
            if self._body[0]:
                self.fail(RpcError(Code.UNIMPLEMENTED, "compressed messages are not supported"))
                break
            if stop - _PREFIX > MAX_MESSAGE_BYTES:
                self.fail(etcd_error(Code.INVALID_ARGUMENT, "request is too large"))
                break
            if len(self._body) < stop:
                break
            message = bytes(self._body[_PREFIX:stop])
            del self._body[:stop]
            self._session.gathered(self._number, -stop)
            self._take(message)

    def _take(self, message: bytes) -> None:
        if self._call is not None:
            try:
                self._call.received(message)
            except DecodeError:
                self.fail(_GARBAGE)
            except RpcError as refusal:
                self.fail(refusal)
        elif self._message is None:
            self._message = message
        else:
            self.fail(RpcError(Code.INVALID_ARGUMENT, "a second message of a call that has one"))

    def ended(self) -> None:
        """The client has sent the whole request."""
        if self._is_closed:
            return
        if self._call is not None:
            self._call.ended()
            return
        message = self._message
        if message is None:
            self.fail(_GARBAGE)
            return
        size_bytes = len(message) + self._has_head()
        port = self._session.port
        if port.waiting_bytes + size_bytes > MOST_WAITING_BYTES:
            self.fail(etcd_error(Code.RESOURCE_EXHAUSTED, "too many requests"))
            return
        self._waiting_bytes = size_bytes
        port.waiting_bytes += size_bytes
        self._task = asyncio.get_running_loop().create_task(self._answer(message))
        self._task.add_done_callback(self._answered)

    def _has_head(self) -> int:
        """Stop counting its headers as partly received. Returns their size the first time, then 0."""
        head_bytes, self._head_bytes = self._head_bytes, 0
        self._session.gathered(self._number, -head_bytes)
        return head_bytes

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._session.port.waiting_bytes -= self._waiting_bytes

    async def _answer(self, message: bytes) -> None:
        try:
            client, method = self._session.client, self._method
            if method is None:
                answer: Message = await client.log_in(pb.AuthenticateRequest.FromString(message))
            else:
                handlers = client.handlers(self._token)  # first: a wrong token costs no parsing
                answer = await method.handle(handlers, method.request.FromString(message))
            self.send(answer, _OK)
        except (RpcError, LedgerError) as refusal:
            self.fail(self.known(refusal))
        except DecodeError:
            self.fail(_GARBAGE)
        except Exception as error:
            contain(error, self._session)

    def known(self, refusal: RpcError | LedgerError) -> RpcError:
        if isinstance(refusal, RpcError):
            return refusal
        if isinstance(refusal, NotAuthenticated):
            return self._session.client.refusal_of_nobody(self._token)
        return error_of(refusal)

    # ---------------------------------------------------------------- what goes

    def send(self, answer: Message, trailers: list[tuple[bytes, bytes]] | None = None) -> None:
        """`trailers`: for the last message."""
        if self._is_closed:
            return
        data = answer.SerializeToString()
        self._send(b"\0" + len(data).to_bytes(4, "big") + data, trailers)

    def fail(self, error: RpcError) -> None:
        if self._is_closed:
            return
        words = error.words[:1000].translate(_QUOTED).encode("ascii", "replace")
        trailers = [(b"grpc-status", b"%d" % error.code), (b"grpc-message", words)]
        self._send(b"", trailers)

    def finish(self) -> None:
        if not self._is_closed:
            self._send(b"", _OK)

    def _send(self, data: bytes, trailers: list[tuple[bytes, bytes]] | None) -> None:
        if not self._has_begun and trailers is not None and not data:
            trailers = [*_HEAD, *trailers]
            self._has_begun = True
        if data:
            self._out.append(memoryview(data))
            self._session.queued(self, len(data))
        if trailers is not None:
            self._trailers = trailers
        self.pump()

    def pump(self) -> None:
        """Send as far as the client's windows and its reading allow."""
        try:
            self._pump()
        except h2.exceptions.ProtocolError:
            # The client has ended it, or the connection: what says so has come, and is taken soon.
            self.close()

    def _pump(self) -> None:
        http, session, out = self._session.http, self._session, self._out
        if out and not self._has_begun:
            self._has_begun = True
            http.send_headers(self._number, _HEAD)
        while out and not session.is_clogged:
            room = min(http.local_flow_control_window(self._number), http.max_outbound_frame_size)
            if room <= 0:
                break
            data = out.popleft()
            if len(data) > room:
                out.appendleft(data[room:])
                data = data[:room]
            session.queued(self, -len(data))
            http.send_data(self._number, data)
        if not out and self._trailers is not None and not self._is_closed:
            http.send_headers(self._number, self._trailers, end_stream=True)
            self.close()
            session.ended(self._number)
        session.will_flush()

    @property
    def waits(self) -> bool:
        """Bytes or trailers of it wait for the client."""
        return bool(self._out)

    async def room(self) -> None:
        """Wait until there is room for an answer."""
        if self._session.is_full:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._session.when_room(partial(_set, room))
            await room

    def close(self) -> None:
        """End the stream and its tasks."""
        self._is_closed = True
        self._session.gathered(self._number, -len(self._body))
        self._has_head()
        self._body.clear()
        waiting_bytes = sum(map(len, self._out))
        self._out.clear()
        self._session.queued(self, -waiting_bytes)
        if self._call is not None:
            self._call.close()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


_GARBAGE = RpcError(Code.INTERNAL, "grpc: the message cannot be read")
_QUOTED = {ord(each): f"%{ord(each):02X}" for each in _UNSAFE}


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


class _GrpcCall:
    """A call with streams of messages in both directions."""

    def __init__(self, stream: _GrpcStream, session: _GrpcClient, handlers: Handlers) -> None:
        self._stream = stream

    def received(self, message: bytes) -> None:
        """Raises DecodeError, RpcError."""

    def ended(self) -> None:
        """The client has ended its side of the stream."""

    def close(self) -> None: ...


class _WatchCall(_GrpcCall):
    def __init__(self, stream: _GrpcStream, session: _GrpcClient, handlers: Handlers) -> None:
        super().__init__(stream, session, handlers)
        self._watches = WatchStream(handlers, self._tell, session.may_watch)

    def received(self, message: bytes) -> None:
        self._watches.ask(pb.WatchRequest.FromString(message))

    async def _tell(self, response: pb.WatchResponse) -> None:
        self._stream.send(response)
        await self._stream.room()

    def ended(self) -> None:
        self._stream.finish()

    def close(self) -> None:
        self._watches.close()


class _KeepAliveCall(_GrpcCall):
    """Keep-alives, answered one after the other."""

    def __init__(self, stream: _GrpcStream, session: _GrpcClient, handlers: Handlers) -> None:
        super().__init__(stream, session, handlers)
        self._session = session
        self._handlers = handlers
        self._asked: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_ended = False

    def received(self, message: bytes) -> None:
        if len(self._asked) >= MOST_KEEP_ALIVES:
            self._stream.fail(etcd_error(Code.RESOURCE_EXHAUSTED, "too many requests"))
            return
        self._asked.append(message)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        try:
            while self._asked:
                asked = pb.LeaseKeepAliveRequest.FromString(self._asked.popleft())
                self._stream.send(await self._handlers.keep_alive(asked))
                await self._stream.room()
            self._task = None
            if self._is_ended:
                self._stream.finish()
        except (RpcError, LedgerError) as refusal:
            self._task = None
            self._stream.fail(self._stream.known(refusal))
        except DecodeError:
            self._task = None
            self._stream.fail(_GARBAGE)
        except Exception as error:
            contain(error, self._session)

    def ended(self) -> None:
        self._is_ended = True
        if self._task is None:
            self._stream.finish()

    def close(self) -> None:
        self._asked.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
