"""TLS below a `Connection`, by the event loop's own `start_tls`, for both sides.

Encryption begins only with `begin`, so that handshakes can wait for their turn.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from quorumlog.net.connection import Connection
from quorumlog.net.limits import GREETING_MS
from quorumlog.net.tls import Certificate, words_of

_HANDSHAKE = 0x16
"""The first byte of TLS."""
_PROTOCOL_VERSION = b"\x15\x03\x03\x00\x02\x02\x46"
_SHUTDOWN_S = 5.0


class TlsRefused(ConnectionError):
    """There is no TLS on a connection, with the reason."""


class Encryption(asyncio.Protocol):
    """The protocol of a TCP connection until its TLS is established; then replaced by `connection`."""

    def __init__(
        self,
        connection: Connection,
        on_made: Callable[[Encryption], None] = lambda encryption: None,
        on_first: Callable[[Encryption], None] = lambda encryption: None,
        on_lost: Callable[[Encryption], None] = lambda encryption: None,
    ) -> None:
        """`on_first`: the dialling side has sent bytes, and waits. `on_lost`: before `begin`."""
        self.connection = connection
        self._on_made, self._on_first, self._on_lost = on_made, on_first, on_lost
        self._tcp: asyncio.Transport | None = None
        self._first = b""
        self._early = bytearray()
        """Decrypted before `connection` stands there to take it."""
        self._has_begun = False

    # ---------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        if self._has_begun:
            self._early += data
            return
        assert self._tcp is not None
        self._tcp.pause_reading()
        self._first += data
        self._on_first(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_begun:
            self._on_lost(self)

    # ---------------------------------------------------------------- what others call

    @property
    def is_tls(self) -> bool:
        """By the first byte of the client."""
        return self._first[:1] == bytes((_HANDSHAKE,))

    @property
    def peer_name(self) -> str:
        name = None if self._tcp is None else self._tcp.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"

    @property
    def peer_host(self) -> str:
        return self.peer_name.rpartition(":")[0]

    def refuse(self) -> None:
        """For a peer without TLS: send an alert, which shows a client that this port needs TLS."""
        if self._tcp is not None:
            self._tcp.write(_PROTOCOL_VERSION)
            self._tcp.close()

    def abort(self) -> None:
        if self._tcp is not None:
            self._tcp.abort()

    async def begin(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        check: Callable[[Certificate], str] = lambda certificate: "",
    ) -> None:
        """Returns once `connection` is made. `check`: the fault of the other side's certificate, before
        anything is sent. Raises Refused with the reason as its cause, if it has one."""
        tcp = self._tcp
        assert tcp is not None
        self._has_begun = True
        if tcp.is_closing():
            raise TlsRefused(words_of(ConnectionResetError()))
        try:
            transport = await self._start(tcp, context, server_side)
        except (OSError, EOFError) as error:  # what ssl raises is an OSError
            tcp.abort()
            raise TlsRefused(words_of(error)) from error
        encrypted = None if transport is None else transport.get_extra_info("ssl_object")
        if transport is None or encrypted is None or transport.get_extra_info("socket") is None:
            # So loops end one whose connection was aborted, or lost since.
            raise TlsRefused(words_of(ConnectionAbortedError()))
        reason = check(encrypted.getpeercert() or {})
        if reason:
            transport.abort()
            raise TlsRefused(reason)
        self.connection.connection_made(transport)
        self.connection.below(tcp)
        transport.set_protocol(self.connection)
        self.connection.received(bytes(self._early))
        self._early.clear()

    async def _start(
        self, tcp: asyncio.Transport, context: ssl.SSLContext, server_side: bool
    ) -> asyncio.Transport | None:
        loop = asyncio.get_running_loop()
        starting = loop.create_task(
            loop.start_tls(
                tcp,
                self,
                context,
                server_side=server_side,
                ssl_handshake_timeout=GREETING_MS / 1000,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        )
        try:
            await self._give_first(tcp, starting)
            return await starting
        except BaseException:
            starting.cancel()
            raise

    async def _give_first(self, tcp: asyncio.Transport, starting: asyncio.Task[Any]) -> None:
        if self._first:
            # It has to come before what the loop reads from now on.
            while tcp.get_protocol() is self and not starting.done():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            below = cast(asyncio.BufferedProtocol | None, tcp.get_protocol())
            if below is None:  # the connection was lost meanwhile
                raise ConnectionResetError
            while self._first and not starting.done():
                buffer = memoryview(below.get_buffer(len(self._first)))
                taken = min(len(buffer), len(self._first))
                buffer[:taken] = self._first[:taken]
                self._first = self._first[taken:]
                below.buffer_updated(taken)


async def dial(
    connection: Connection,
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
    check: Callable[[Certificate], str] = lambda certificate: "",
) -> None:
    """Plain where `context` is None. Raises OSError; TlsRefused if it is for TLS."""
    loop = asyncio.get_running_loop()
    if context is None:
        await loop.create_connection(lambda: connection, host, port)
        return
    _, encryption = await loop.create_connection(lambda: Encryption(connection), host, port)
    try:
        await encryption.begin(context, server_side=False, check=check)
    except asyncio.CancelledError:
        encryption.abort()
        raise
